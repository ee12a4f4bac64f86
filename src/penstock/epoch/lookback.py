"""A look back, before anything is aborted: does every sink still have what was committed last?

A complete epoch is never asked for again, so nobody would notice that another system has lost it: a database whose
replica was promoted before it had received everything, a store that came back from an older copy or with nothing. The
newest epoch that had rows is lost first, so it stands for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.backlog import is_logged
from penstock.errors import CommittedRowsLost

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger
    from penstock.deadline import Deadline
    from penstock.epoch.committers import Committers

#: How far back an epoch with rows is looked for; sinks keep their proofs at least as long.
_FURTHEST = 16


def refuse_lost_rows(
    ledger: Ledger, query: str | None, epoch: int, committers: Committers, name: str, deadline: Deadline
) -> None:
    """`CommittedRowsLost` where a sink has proven to have lost rows of the newest epoch before `epoch`. What it has
    merely fallen back to prepared is committed again."""
    if epoch < 1:
        return
    decided = ledger.decisions_since(max(0, epoch - _FURTHEST), query)
    complete = [
        decision
        for decision in decided
        if decision.id.epoch < epoch and any(not is_logged(one) for one in decision.to_commit)
    ]
    if not complete:
        return
    newest = max(complete, key=lambda decision: decision.id)
    own = [one for one in newest.to_commit if not is_logged(one)]
    lost = committers.missing(newest.id.epoch, own, deadline)
    if not lost:
        return
    known = ledger.ruled(newest.id.epoch, query, own)
    lost = {writer: said for writer, said in lost.items() if writer not in known}
    if lost:
        rows = sum(one.rows for one in own if one.id in lost)
        sinks = ", ".join(sorted({sink for sink, _ in lost}))
        raise CommittedRowsLost(
            f"Epoch {newest.id.epoch} of query {name!r} was committed, and {rows:,} of its rows are not in {sinks} any "
            "more: an older copy, or a replica that was behind, has taken the place of what had confirmed them. "
            "Earlier epochs may be missing as well.",
            safe="nothing was written since, and nothing was aborted; the checkpoint is as it was.",
            to_do="bring the rows back there; or restore a savepoint made before the loss, which writes them again. To "
            f"go on without them, say so there: {'; '.join(sorted(set(lost.values())))}",
        )
