"""What runs that the ledger does not know have left open.

A sweep never touches what a newer generation has opened: usually that run has taken over. But where the ledger knows no
such generation, there is nobody who will ever end it: the checkpoint was deleted, or replaced by an older copy, and
generations began again. Whether it was decided stood in the ledger that is gone, so nothing here ends it either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.contracts.sink import Committer, Leftover, SinkScope, TwoPhaseSink
from penstock.errors import LedgerLost

if TYPE_CHECKING:
    from penstock.deadline import Deadline

#: No run gets there, so a committer of this generation sees what all of them have left. Fits a database's bigint.
_LAST = 1 << 62


def of_all_generations(sink: TwoPhaseSink, scope: SinkScope, deadline: Deadline) -> Sequence[Leftover] | None:
    """What the sink has open, whichever run opened it; None where the sink cannot say."""
    committer = sink.open_committer(replace(scope, generation=_LAST))
    try:
        return committer.leftovers(deadline)
    finally:
        committer.close()


def refuse_unknown_runs(
    sink: TwoPhaseSink, scope: SinkScope, committer: Committer, newest: Callable[[], int], deadline: Deadline
) -> None:
    """`LedgerLost` where the sink has something open of a generation that is not in the ledger; `newest` asks that for
    its newest one. `committer` is the sink's under `scope`."""
    if type(committer).leftovers is Committer.leftovers:
        return  # it cannot say
    found = of_all_generations(sink, scope, deadline) or ()
    if not any(one.generation > scope.generation for one in found):
        return
    known = newest()  # asked after the look: a run that has registered since is in it
    unknown = sorted((one for one in found if one.generation > known), key=lambda one: one.name)
    if unknown:
        generations = ", ".join(map(str, sorted({one.generation for one in unknown})))
        shown = ", ".join(one.name for one in unknown[:3]) + (", …" if len(unknown) > 3 else "")
        raise LedgerLost(
            f"Sink {scope.uid!r} of job {scope.job!r} has {len(unknown)} open transactions of generation {generations} "
            f"and the newest run in the ledger is {known}: {shown}. The checkpoint was deleted or replaced by an older "
            "copy; or another job of this name, with a checkpoint of its own, writes to the same place.",
            safe="none of it is visible, and nothing was touched. Whether it was decided, only the ledger that is gone "
            "could tell; what it locks stays locked.",
            to_do="bring that ledger back, or give this job another name. If it is lost for good, see whether the rows "
            "are in the output, then: penstock transactions abort --job JOB.py --force ID… (penstock transactions list "
            "--job JOB.py shows the ids), and start again.",
        )
