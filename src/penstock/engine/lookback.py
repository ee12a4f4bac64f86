"""A look back, before anything is aborted: does every sink still have what was committed last?

A complete epoch is never asked for again, so nobody would notice that another system has lost it: a database whose
replica was promoted before it had received everything, a store that came back from an older copy or with nothing. In
each sink the newest epoch that had rows for it is lost first, so it stands for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import CommittedRowsLost

if TYPE_CHECKING:
    from penstock.checkpoint.decision import WriterId
    from penstock.checkpoint.ledger import Ledger
    from penstock.deadline import Deadline
    from penstock.engine.committers import Committers


def refuse_lost_rows(
    ledger: Ledger, query: str | None, epoch: int, committers: Committers, name: str, deadline: Deadline
) -> None:
    """`CommittedRowsLost` where a sink has proven to have lost rows of the newest epoch before `epoch` that had some
    for it, as far back as the ledger goes. What it has merely fallen back to prepared is committed again."""
    left = committers.looking_back()
    lost: dict[WriterId, str] = {}
    rows = dict[int, int]()
    for decision in ledger.decisions_before(epoch, query) if left else ():
        number = decision.id.epoch
        own = [one for one in decision.to_commit if one.sink in left and not one.logged]
        found = committers.missing(number, own, deadline) if own else {}
        known = ledger.ruled(number, query, own) if found else {}
        found = {writer: said for writer, said in found.items() if writer not in known}
        if found:
            lost |= found
            rows[number] = sum(one.rows for one in own if one.id in found)
        left -= {one.sink for one in own}
        if not left:
            break
    if lost:
        epochs = " and ".join(f"{count:,} rows of epoch {number}" for number, count in sorted(rows.items()))
        sinks = ", ".join(sorted({sink for sink, _ in lost}))
        raise CommittedRowsLost(
            f"Query {name!r} has committed {epochs} that are not in {sinks} any more: an older copy, or a replica that "
            "was behind, has taken the place of what had confirmed them. Earlier epochs may be missing as well.",
            safe="nothing was written since, and nothing was aborted; the checkpoint is as it was.",
            to_do="bring the rows back there; or restore a savepoint made before the loss, which writes them again. To "
            f"go on without them, say so there: {'; '.join(sorted(set(lost.values())))}",
        )
