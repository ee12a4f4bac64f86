"""The sinks of one run as its driver uses them: a committer for each, opened for the run's generation.

* **Newer generations.** A sweep never touches what a newer generation has opened: usually that run has taken over.
  But if the ledger does not know that generation, the checkpoint was deleted or replaced by an older copy, and no run
  will ever end the transaction. Whether it was decided was in the ledger that is gone, so nothing here ends it either
  (`refuse_unknown_runs`).
* **Lost rows.** A complete epoch is never read again, so a loss in the other system would go unnoticed: a database
  whose replica was promoted before it had received everything, a store that came back from an older copy or empty. In
  each sink the newest epoch that had rows for it is lost first, so before a sweep that one is checked
  (`refuse_lost_rows`).
* **Stragglers.** Tasks that were given up, and drivers that were superseded, may still open a transaction or write a
  log file after the sweep that should have found it. So the sweep is repeated: every few seconds for a minute after a
  start or a race between tasks, and once a minute for the whole run where older runs exist, because a stalled driver
  may wake at any time. Between epochs nothing that is open is needed, except what is decided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from penstock.checkpoint.decision import Committable, Outcome, WriterId
from penstock.contracts.sink import Committer, Leftover, SinkScope, TwoPhaseSink
from penstock.errors import CommittedRowsLost, LedgerLost, UidChanged
from penstock.logs import bound

if TYPE_CHECKING:
    from penstock.checkpoint.ledger import Ledger
    from penstock.deadline import Deadline
    from penstock.engine.inflight import InFlight

log = logging.getLogger("penstock")

_T = TypeVar("_T")

#: Above every real generation, so a committer of it sees the leftovers of all of them. Fits a database's bigint.
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
        self._close_open()
        self._pool.shutdown(wait=False)

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> tuple[Committable, ...]:
        """Each sink confirms what its writers say they prepared."""
        sealed = self._per_sink(committables, lambda committer, group: committer.seal(group, deadline))
        by_id = {committable.id: committable for group in sealed.values() for committable in group}
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
        answers = self._per_sink(committables, lambda committer, group: committer.commit(epoch, group, deadline))
        return {(sink, writer): outcome for sink, answer in answers.items() for writer, outcome in answer.items()}

    def looking_back(self) -> set[str]:
        """The sinks that can tell whether they have lost what was committed."""
        return {uid for uid, (_, each) in self._open.items() if type(each).missing is not Committer.missing}

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> dict[WriterId, str]:
        """Of a complete epoch: the writers that a sink has proven to have lost since, and how an operator accepts
        that there. All of `committables` are of sinks that can tell."""
        answers = self._per_sink(committables, lambda committer, group: committer.missing(epoch, group, deadline))
        return {(sink, writer): remedy for sink, answer in answers.items() for writer, remedy in answer.items()}

    def fencing(self) -> list[str]:
        """The sinks where no older run can open anything since their first sweep."""
        return [uid for uid, (_, committer) in self._open.items() if committer.fences_older_runs]

    def abort_dangling(self, keep: Sequence[Committable], deadline: Deadline, without: Collection[str] = ()) -> int:
        """Abort what this and older generations left open, except `keep`; how many there were. The sinks in `without`
        are not asked."""
        count = 0
        for uid, (_, committer) in self._open.items():
            if uid in without:
                continue
            # A writer without rows prepared nothing: there is nothing of it to keep.
            kept = [committable for committable in keep if committable.sink == uid and committable.rows]
            with bound(sink=uid):
                count += committer.abort_dangling(kept, deadline)
        return count

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

        def ask(uid: str, group: Sequence[Committable]) -> _T:
            with bound(sink=uid):
                return call(self[uid], group)

        if len(groups) == 1:
            ((uid, group),) = groups.items()
            return {uid: ask(uid, group)}
        futures = {uid: self._pool.submit(copy_context().run, ask, uid, group) for uid, group in groups.items()}
        for future in futures.values():
            future.exception()
        return {uid: future.result() for uid, future in futures.items()}

    def _close_open(self) -> None:
        for _, committer in self._open.values():
            committer.close()
        self._open.clear()


def of_all_generations(sink: TwoPhaseSink, scope: SinkScope, deadline: Deadline) -> Sequence[Leftover] | None:
    """What the sink has open, whichever run opened it; None where the sink cannot say."""
    with closing(sink.open_committer(replace(scope, generation=_LAST))) as committer:
        return committer.leftovers(deadline)


def refuse_unknown_runs(
    sink: TwoPhaseSink, scope: SinkScope, committer: Committer, newest: Callable[[], int], deadline: Deadline
) -> None:
    """`LedgerLost` where the sink has something open of a generation that is not in the ledger; `newest` asks that for
    its newest one. `committer` is the sink's under `scope`."""
    if type(committer).leftovers is Committer.leftovers:
        return  # it cannot say
    leftovers = of_all_generations(sink, scope, deadline) or ()
    if not any(leftover.generation > scope.generation for leftover in leftovers):
        return
    known = newest()  # asked after the look: a run that has registered since is in it
    unknown = [leftover for leftover in leftovers if leftover.generation > known]
    if unknown:
        generations = ", ".join(map(str, sorted({leftover.generation for leftover in unknown})))
        shown = ", ".join(sorted(leftover.name for leftover in unknown)[:3]) + (", …" if len(unknown) > 3 else "")
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


def refuse_lost_rows(
    ledger: Ledger, query: str | None, epoch: int, committers: Committers, name: str, deadline: Deadline
) -> None:
    """`CommittedRowsLost` where a sink has proven to have lost rows of the newest epoch before `epoch` that had some
    for it, as far back as the ledger goes. What it has merely fallen back to prepared is committed again."""
    unchecked = committers.looking_back()
    lost: dict[WriterId, str] = {}
    rows = dict[int, int]()
    for decision in ledger.decisions_before(epoch, query) if unchecked else ():
        number = decision.id.epoch
        newest = [item for item in decision.to_commit if item.sink in unchecked and not item.logged]
        missing = committers.missing(number, newest, deadline) if newest else {}
        ruled = ledger.ruled(number, query, newest) if missing else {}
        missing = {writer: remedy for writer, remedy in missing.items() if writer not in ruled}
        if missing:
            lost |= missing
            rows[number] = sum(committable.rows for committable in newest if committable.id in missing)
        unchecked -= {committable.sink for committable in newest}
        if not unchecked:
            break
    if lost:
        raise rows_lost(name, ", ".join(sorted({sink for sink, _ in lost})), rows, lost.values())


def rows_lost(name: str, sinks: str, rows: Mapping[int, int], remedies: Iterable[str]) -> CommittedRowsLost:
    """Of query `name`; `rows` by epoch."""
    epochs = " and ".join(f"{count:,} rows of epoch {number}" for number, count in sorted(rows.items()))
    return CommittedRowsLost(
        f"Query {name!r} has committed {epochs} that are not in {sinks} any more: an older copy, or a replica that "
        "was behind, has taken the place of what had confirmed them. Earlier epochs may be missing as well.",
        safe="nothing was written since, and nothing was aborted; the checkpoint is as it was.",
        to_do="bring the rows back there; or restore a savepoint made before the loss, which writes them again. To "
        f"go on without them, say so there: {'; '.join(sorted(set(remedies)))}",
    )


_AGAIN_FOR = 60.0  # seconds after a start, or after tasks raced
_AGAIN_EVERY = 5.0
_OLDER_EVERY = 60.0


class SweepTimes:
    def __init__(self) -> None:
        self.started(0)

    def started(self, generation: int, *, strays: bool = False) -> None:
        """A recovery is over. Tasks and drivers of runs before `generation` may still live, or `strays` of this one."""
        self._swept, self._older = time.monotonic(), generation > 1
        self._until = self._swept + (_AGAIN_FOR if self._older or strays else 0.0)

    def expect(self) -> None:
        """From now on, for a while, tasks of this run may leave something behind."""
        self._until = time.monotonic() + _AGAIN_FOR

    def swept(self) -> None:
        self._swept = time.monotonic()

    @property
    def soon(self) -> bool:
        """Whether what this run's tasks may leave is looked for as well."""
        return time.monotonic() < self._until

    @property
    def due(self) -> bool:
        every = _AGAIN_EVERY if self.soon else _OLDER_EVERY
        return (self.soon or self._older) and time.monotonic() > self._swept + every


class Stragglers:
    """Of one start of one query. `abort` is `LedgerRun.abort_dangling`; `keep` is what the last decision names."""

    def __init__(self, query: str, abort: Callable[..., None], inflight: InFlight | None = None) -> None:
        self._query, self._abort, self._inflight = query, abort, inflight
        self._times = SweepTimes()
        self._logs = False
        self.keep: tuple[Committable, ...] = ()

    def expect(self, *, logs: bool = False) -> None:
        """From now on, for a while, leftovers are possible; `logs`: log files, too."""
        self._times.expect()
        self._logs = self._logs or logs

    def started(self, generation: int) -> None:
        self._times.started(generation)

    def sweep(self, keep: Sequence[Committable]) -> None:
        """Abort and remove all leftovers, except `keep`. No task of this run writes now."""
        self.keep = tuple(keep)
        self._times.swept()
        self._abort(self._kept())
        if self._inflight is not None:
            self._inflight.remove_strays(keep)

    def abort_all_quietly(self) -> None:
        """Where nothing is decided and a failure is under way, which matters more; the next start sweeps again."""
        self._times.swept()
        try:
            self._abort(())
        except Exception as error:
            log.warning("query %s: leftovers could not be aborted: %s", self._query, error)

    def remove_logs(self) -> None:
        """After an epoch: the log files of its attempts that were given up."""
        if self._inflight is not None and self._logs:
            self._inflight.remove_strays(self.keep)
            self._logs = False

    def sweep_again(self) -> None:
        """Between epochs, now and then: abort what was opened since."""
        if not self._times.due:
            return
        older = not self._times.soon
        self._times.swept()
        # Where rows wait to be written from the log, the drainer sweeps, and knows whether the sink answers.
        behind = self._inflight.behind() if self._inflight is not None else ()
        try:
            self._abort(self._kept(), again=True, without=behind, older=older)
        except Exception as error:  # no epoch needs it: the next sweep, or the next start, finds the rest
            log.warning("query %s: leftovers of earlier attempts could not be swept: %s", self._query, error)

    def _kept(self) -> list[Committable]:
        """Of what is kept and of what waits in the in-flight log, that which was prepared at the sinks stays open."""
        waiting = self._inflight.prepared() if self._inflight is not None else []
        return [prepared for committable in self.keep if (prepared := committable.at_sink) is not None] + waiting
