"""The sinks of one run as its driver sees them: a committer for each, opened for the run's generation.

A sweep never touches what a newer generation has opened: usually that run has taken over. But where the ledger knows no
such generation, there is nobody who will ever end it: the checkpoint was deleted, or replaced by an older copy, and
generations began again. Whether it was decided stood in the ledger that is gone, so nothing here ends it either
(`refuse_unknown_runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock.checkpoint.decision import Committable, Outcome, WriterId
from penstock.contracts.sink import Committer, Leftover, SinkScope, TwoPhaseSink
from penstock.errors import LedgerLost, UidChanged
from penstock.logs import bound

if TYPE_CHECKING:
    from penstock.deadline import Deadline

_T = TypeVar("_T")

#: No run gets there, so a committer of this generation sees what all of them have left. Fits a database's bigint.
_LAST = 1 << 62


class Committers:
    """Opened anew for each generation; every call goes to all sinks that it concerns, side by side."""

    def __init__(self, query: str, sinks: Mapping[str, TwoPhaseSink]) -> None:
        self._query, self._sinks = query, dict(sinks)
        self._open: dict[str, tuple[SinkScope, Committer]] = {}
        self._pool = ThreadPoolExecutor(max_workers=max(4, len(sinks)), thread_name_prefix=f"penstock-{query}")
        self._runs_known = False

    def __getitem__(self, uid: str) -> Committer:
        return self._open[uid][1]

    def open(self, scopes: Mapping[str, SinkScope]) -> None:
        """For a new generation. Those of an earlier one, whose recovery is tried again, are closed."""
        self._close_open()
        self._runs_known = False
        for uid, scope in scopes.items():
            self._open[uid] = (scope, self._sinks[uid].open_committer(scope))

    def close(self) -> None:
        """Free all connections."""
        self._close_open()
        self._pool.shutdown(wait=False)

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> tuple[Committable, ...]:
        """Each sink confirms what its writers say they prepared."""
        sealed = self._per_sink(committables, lambda committer, own: committer.seal(own, deadline))
        by_id = {committable.id: committable for own in sealed.values() for committable in own}
        return tuple(by_id.get(committable.id, committable) for committable in committables)

    def seal_for_others(self, committables: Sequence[Committable], deadline: Deadline) -> tuple[Committable, ...]:
        """As `seal`, for epochs that other committers commit: nothing stays locked for them."""
        sealed = self.seal(committables, deadline)
        for uid in {committable.sink for committable in committables}:
            self[uid].release()
        return sealed

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> dict[WriterId, Outcome]:
        """What is proven of each. `UidChanged`, with nothing committed, where a sink is not known here."""
        missing = {committable.sink for committable in committables} - self._sinks.keys()
        if missing:
            raise self.uids_changed(missing, f"epoch {epoch} is decided for")
        answers = self._per_sink(committables, lambda committer, own: committer.commit(epoch, own, deadline))
        return {(sink, writer): outcome for sink, own in answers.items() for writer, outcome in own.items()}

    def looking_back(self) -> set[str]:
        """The sinks that can tell whether they have lost what was committed."""
        return {uid for uid, (_, each) in self._open.items() if type(each).missing is not Committer.missing}

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> dict[WriterId, str]:
        """Of a complete epoch: the writers that a sink has proven to have lost since, and how a person says so there.
        All of `committables` are of sinks that can tell."""
        answers = self._per_sink(committables, lambda committer, own: committer.missing(epoch, own, deadline))
        return {(sink, writer): said for sink, found in answers.items() for writer, said in found.items()}

    def fencing(self) -> list[str]:
        """The sinks where no older run can open anything since their first sweep."""
        return [uid for uid, (_, committer) in self._open.items() if committer.fences_older_runs]

    def abort_dangling(self, keep: Sequence[Committable], deadline: Deadline, without: Collection[str] = ()) -> int:
        """Abort what this and older generations left open, except `keep`; how many there were. The sinks in `without`
        are not asked."""
        found = 0
        for uid, (_, committer) in self._open.items():
            if uid in without:
                continue
            # A writer without rows prepared nothing: there is nothing of it to keep.
            own = [committable for committable in keep if committable.sink == uid and committable.rows]
            with bound(sink=uid):
                found += committer.abort_dangling(own, deadline)
        return found

    def refuse_unknown_runs(self, newest: Callable[[], int], deadline: Deadline) -> None:
        """Once in a generation: `LedgerLost` where a sink has something open of a newer run than the ledger knows."""
        if self._runs_known:
            return
        for uid, (scope, committer) in self._open.items():
            refuse_unknown_runs(self._sinks[uid], scope, committer, newest, deadline)
        self._runs_known = True

    def uids_changed(self, uids: Iterable[str], why: str) -> UidChanged:
        """The error where the ledger knows sinks that the program does not have any more."""
        return UidChanged(
            f"The ledger of query {self._query!r} knows the sinks {sorted(uids)} ({why} them),"
            f" but the program has {sorted(self._sinks)}.",
            safe="nothing was committed or aborted; what is decided waits, until its transactions expire.",
            to_do="give the sink its former uid and let the epoch finish, then rename it in a new query.",
        )

    def _per_sink(
        self, committables: Sequence[Committable], call: Callable[[Committer, Sequence[Committable]], _T]
    ) -> dict[str, _T]:
        """`call` for every sink that has committables, side by side; the first error is raised after all have ended."""
        groups: dict[str, list[Committable]] = {}
        for committable in committables:
            groups.setdefault(committable.sink, []).append(committable)

        def ask(uid: str, own: Sequence[Committable]) -> _T:
            with bound(sink=uid):
                return call(self[uid], own)

        if len(groups) == 1:
            ((uid, own),) = groups.items()
            return {uid: ask(uid, own)}
        futures = {uid: self._pool.submit(copy_context().run, ask, uid, own) for uid, own in groups.items()}
        for future in futures.values():
            future.exception()
        return {uid: future.result() for uid, future in futures.items()}

    def _close_open(self) -> None:
        for _, committer in self._open.values():
            committer.close()
        self._open.clear()


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
    if not any(leftover.generation > scope.generation for leftover in found):
        return
    known = newest()  # asked after the look: a run that has registered since is in it
    unknown = sorted(
        (leftover for leftover in found if leftover.generation > known), key=lambda leftover: leftover.name
    )
    if unknown:
        generations = ", ".join(map(str, sorted({leftover.generation for leftover in unknown})))
        shown = ", ".join(leftover.name for leftover in unknown[:3]) + (", …" if len(unknown) > 3 else "")
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
