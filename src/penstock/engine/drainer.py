"""Delivers the backlog of one sink, oldest epoch first, each with a two-phase commit of its own.

The drainer runs in the driver, in threads beside the query: tasks that wait for a slow sink would hold the very cores
that the epochs need. It commits what the sink had prepared in time, and writes again from the log only what the sink
had not prepared or has lost since, while it has the `WriteTurn`. It retries a sink that does not answer for as long as
it takes: the rows are safe in the log.

A drainer does not register: its runs are the query's, and the query's ledger says whether it is superseded. So there is
one order of runs, and a run that is overtaken before its drainer starts cannot become the newest one here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from penstock.checkpoint.decision import CheckpointState, Committable, DecisionId, Outcome, WriterId
from penstock.checkpoint.inflight import Backlog, Entry, log_of, read_log
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, WriterScope
from penstock.deadline import Deadline
from penstock.engine import protocol
from penstock.engine.checksum import HASH_COLUMN, MODULO, sum_of_hashes
from penstock.engine.committers import SweepTimes, rows_lost
from penstock.engine.driver import LedgerRun
from penstock.engine.protocol import Replay
from penstock.errors import LedgerCorrupt, OutcomeUnknown, PenstockError
from penstock.events import Events
from penstock.failpoints import failpoint
from penstock.logs import bound

log = logging.getLogger("penstock")


class WriteTurn:
    """Whose turn it is to write rows into one sink: an epoch's tasks', or the drainer's; never both.

    In a sink that is a log, such as a topic, a row's place is where it was *written*, not when it was committed. Epochs
    are prepared one after the other, but an epoch may be prepared while earlier ones still wait for their commit, and
    any of those may yet turn out to have lost what it had prepared. Two rules keep the order of epochs:

    1. The drainer writes from the log only while no task writes into the sink: it waits for the epoch under way, and
       one that begins meanwhile goes by the log alone.
    2. Before the drainer writes an epoch, it aborts what later epochs have prepared. Each is written again in its turn.

    Two visible epochs are written in order, also where the drainer wrote the earlier one and tasks the later: those
    tasks either began after the drainer was done (1), or had ended before it began, and then their rows were aborted
    (2). The drainer need not remember that: what it has aborted is lost at the sink, whichever process asks.

    A third rule spares what the second would throw away: tasks write into the sink only while all that waits is
    prepared there. An epoch behind one that has to be written from the log goes by the log alone.

    One object for each sink and process. The coordinator's thread gives the turn to tasks, the drainer's takes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks = False
        self._wanted = False

    def give_to_tasks(self) -> bool:
        """Those of the epoch that begins; False where the drainer has it, or waits for it."""
        with self._changed:
            self._tasks = not self._wanted
            return self._tasks

    def take_from_tasks(self) -> None:
        """The epoch under way is in the backlog, visible or failed: nothing more of it will count."""
        with self._changed:
            self._tasks = False
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a drainer that waits see whether it was given up."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def drainer(self, given_up: Callable[[], bool]) -> Iterator[bool]:
        """While this lasts no task writes. False where the drainer was given up before the tasks had ended."""
        with self._changed:
            self._wanted = True
        try:
            with self._changed:
                while self._tasks and not given_up():
                    self._wait()
                mine = not self._tasks
            yield mine
        finally:
            with self._changed:
                self._wanted = False

    def _wait(self) -> None:
        self._changed.wait()


MARK = "~drain"
"""Behind a sink's uid in the names of what the drainer leaves in the other system. No uid can hold it."""

_WRITERS = 4  # side by side; more would only take the driver's core from the epochs
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_LOOK_EVERY = 1.0  # where nothing waits
_STOP_SECONDS = 10.0
_RECOVERIES = 10**9  # more than a run gets to, one every few seconds


class _DrainRun(LedgerRun):
    """The run is registered already. Each recovery within it has a number of its own: an epoch that this run has
    decided, and whose writers the sink has lost since, is decided once more, and that decision outranks the first."""

    mark, number = MARK, 0

    def newest_generation(self) -> int:
        self.refuse_superseded()
        return self.number


class Drainer:
    """One sink's. `start` runs it in a thread; `failure` is what no waiting can cure."""

    def __init__(
        self,
        *,
        query: str,
        query_id: str,
        sink: TwoPhaseSink,
        own_scope: SinkScope,
        backlog: Backlog,
        ledger: Ledger,
        registered: Ledger,
        events: Events,
        limits: Checkpoints,
        turn: WriteTurn,
    ) -> None:
        uid = own_scope.uid
        self._run = _DrainRun(
            job=own_scope.job,
            query=query,
            sinks={uid: sink},
            ledger=ledger,
            events=events,
            where=backlog.location,
            query_id=lambda: query_id,
            limits=limits,
            registered=registered,
        )
        self._run.generation = own_scope.generation
        self._run.number = own_scope.generation * _RECOVERIES
        self._query, self._ledger, self._limits = query, ledger, limits
        self._uid, self._sink, self._id = uid, sink, query_id
        self._backlog = backlog
        self._own_scope = own_scope  # that of the query's own transactions, some of which are ours to commit
        self._turn, self._times = turn, SweepTimes()
        self._own: Committer | None = None
        self._left: tuple[Committable, ...] = ()  # of the epoch under way, to be written from the log
        self._replay: Replay | None = None
        self._attempt = 0
        self._recovered = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"penstock-drain-{uid}", daemon=True)
        self.failure: BaseException | None = None
        self.hints: Mapping[str, Any] = {}
        self.waiting_for: str | None = None

    def start(self) -> None:
        """Recover, then deliver, until it is stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the epoch under way if the sink lets us, begin no other."""
        self._stopping.set()
        self._backlog.wake()
        self._turn.wake()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():  # else a sink does not answer: when it wakes it is a zombie, and fenced
            self._close()

    def _close(self) -> None:
        self._run.committers.close()
        own, self._own = self._own, None
        if own is not None:
            own.close()

    # Instead of the loop, for a job that does not run

    def unproven(self, seconds: float) -> list[tuple[int, Committable, str]]:
        """Commit the epoch that comes next as far as the sink had prepared it. Of what cannot be proven: the epoch, the
        committable, and what is seen of it in the target."""
        decided = self._run.drive(protocol.commit_decided(), self._perform)
        entry = self._backlog.first()
        if decided is not None:
            decision, known = decided
            epoch, asked, committer = decision.id.epoch, decision.to_commit, self._run.committers[self._uid]
            outcomes = {writer: known[writer] for writer in known if known[writer] is not Outcome.UNKNOWN}
        elif entry is not None:
            epoch, asked, committer = entry.epoch, entry.prepared, self._own_committer()
            outcomes = self._commit_prepared(entry)
        else:
            return []
        unknown = [committable for committable in asked if committable.id not in outcomes]
        seen = committer.evidence(unknown, Deadline(seconds)) if unknown else {}
        return [(epoch, committable, seen.get(committable.writer, "")) for committable in unknown]

    def rule(self, epoch: int, committables: Sequence[Committable], outcome: Outcome) -> None:
        self._run.rule(epoch, committables, outcome)

    # The loop

    def _work(self) -> None:
        with bound(**self._run.log_fields):
            self._loop()
            if self._stopping.is_set():  # too late for `stop` to do it, perhaps
                self._close()

    def _loop(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                if not self._recovered:
                    self._recover()
                if self._stopping.is_set():
                    return
                entry = self._backlog.first()
                self._sweep_again()
                if entry is not None:
                    self._deliver(entry)
                wait, self.waiting_for = _FIRST_WAIT, None
                if entry is None:
                    self._backlog.wait(_LOOK_EVERY)
            except BaseException as error:
                self._recovered = False
                if not (isinstance(error, PenstockError) and error.retryable):
                    self.failure = error
                    self._backlog.wake()
                    return
                if self.waiting_for is None:
                    log.warning("sink %s of query %s takes nothing now: %s", self._uid, self._query, error)
                    self._run.emit("drain_waiting", None, sink=self._uid, error=str(error))
                self.waiting_for = str(error)
                if self._stopping.wait(wait):
                    return
                wait = min(wait * 2, _LONGEST_WAIT)

    def _recover(self) -> None:
        """Finish what an earlier drainer decided, abort what else it left; until this has succeeded nothing is
        delivered. Also in a run that is stopped at once: the coordinator's sweeps do not see the drainer's names."""
        resume = self._run.drive(protocol.recover(), self._perform)
        self._replay, self._recovered = resume.replay, True
        # Requests of an attempt that failed may still arrive.
        self._times.started(self._run.generation, strays=self._attempt > 0)

    def _sweep_again(self) -> None:
        """Between two epochs: abort what drainers of older runs have opened since. What is decided is visible by then,
        or lost."""
        if self._times.due:
            older = not self._times.soon
            self._times.swept()
            try:
                self._run.abort_dangling((), again=True, older=older)
            except PenstockError as error:
                if not error.retryable:
                    raise
                log.warning("sink %s of query %s could not be swept: %s", self._uid, self._query, error)

    def _deliver(self, entry: Entry) -> None:
        failpoint("drain.opened")
        started = time.monotonic()
        self._left = self._not_visible(entry)
        if self._left:
            with self._turn.drainer(self._stopping.is_set) as mine:
                if not mine:
                    return
                self._run.refuse_superseded()
                self._clear_the_way(entry)
                replay = self._replay if self._replay and self._replay.decision.id.epoch == entry.epoch else None
                self._replay = None
                self._attempt += 1
                try:
                    self._run.drive(protocol.run_epoch(self._run.number, entry.epoch, replay), self._perform)
                except LedgerCorrupt:
                    self._backlog.reload()
                    if entry.epoch > self._backlog.drained:
                        self._refuse_lost_rows(entry)
                        raise
                    return  # a run before this one had committed it: it has marked it since, and removed the log
            failpoint("drain.committed")
        self._finish(entry, rewritten=len(self._left), seconds=time.monotonic() - started)

    def _own_committer(self) -> Committer:
        if self._own is None:
            self._own = self._sink.open_committer(self._own_scope)
        return self._own

    def _clear_the_way(self, entry: Entry) -> None:
        """Before rows of this epoch are written: later epochs have none in the sink that could still become visible.

        No task writes now, so what else is open was given up by one; it would hold up readers, or hold locks."""
        deadline = Deadline(self._limits.abort_timeout_seconds)
        behind = [waiting for waiting in self._backlog.entries() if waiting.epoch > entry.epoch]
        if later := [prepared for waiting in behind for prepared in waiting.prepared]:
            self._own_committer().abort(later, deadline)
        self._own_committer().abort_dangling(entry.prepared, deadline)
        self.hints = self._own_committer().hints()

    def _refuse_lost_rows(self, entry: Entry) -> None:
        """The log of an epoch that was committed at once is removed then. `CommittedRowsLost` where it is needed since,
        because the sink has lost the epoch before it was complete."""
        gone = {committable.id for committable in self._left if not self._backlog.has_log(committable)}
        prepared = {committable.writer: committable for committable in entry.prepared if committable.id in gone}
        deadline = Deadline(self._limits.commit_timeout_seconds)
        if missing := self._own_committer().missing(entry.epoch, list(prepared.values()), deadline):
            rows = sum(prepared[writer].rows for writer in missing)
            raise rows_lost(self._query, self._uid, {entry.epoch: rows}, missing.values())

    def _not_visible(self, entry: Entry) -> tuple[Committable, ...]:
        """Commit what the sink had prepared; returns what has to be written from the log."""
        if not entry.prepared:
            return entry.committables
        self._run.refuse_superseded()
        outcomes = self._commit_prepared(entry)
        unknown = [committable for committable in entry.prepared if committable.id not in outcomes]
        if unknown:
            raise OutcomeUnknown(
                f"Epoch {entry.epoch} of query {self._query!r}: whether {len(unknown)} writers of {self._uid!r} are"
                " committed could not be proven in time.",
                safe="the rows are in the in-flight log; nothing is guessed, nothing doubled. It is asked again.",
                to_do="see that the target system answers. If it has forgotten them for good: stop the job, then"
                " penstock transactions resolve.",
            )
        left = [item for item in entry.committables if item.at_sink is None or outcomes[item.id] is Outcome.LOST]
        return tuple(left)

    def _commit_prepared(self, entry: Entry) -> dict[WriterId, Outcome]:
        """What is proven of each, or ruled where nothing can be."""
        own = self._own_committer()
        answers = own.commit(entry.epoch, entry.prepared, Deadline(self._limits.commit_timeout_seconds))
        self.hints = own.hints()
        outcomes: dict[WriterId, Outcome] = {
            committable.id: outcome
            for committable in entry.prepared
            if (outcome := answers.get(committable.writer, Outcome.UNKNOWN)) is not Outcome.UNKNOWN
        }
        unknown = [committable for committable in entry.prepared if committable.id not in outcomes]
        if not unknown:
            return outcomes
        decided = self._ledger.decisions(entry.epoch, self._id)
        if decided:  # by a drainer that had proof of each: it rewrote what was lost, and only that
            lost = {committable.id for decision in decided for committable in decision.committables}
            return outcomes | {
                item.id: Outcome.LOST if item.id in lost else Outcome.ALREADY_COMMITTED for item in unknown
            }
        return outcomes | self._ledger.ruled(entry.epoch, self._id, unknown)

    def _finish(self, entry: Entry, *, rewritten: int, seconds: float) -> None:
        self._backlog.mark(entry.epoch)
        failpoint("drain.marked")
        self._run.emit(
            "drained",
            entry.epoch,
            sink=self._uid,
            rows=sum(committable.rows for committable in entry.committables),
            writers=len(entry.committables),
            rewritten=rewritten,
            bytes=entry.bytes,
            backlog=self._backlog.count - 1,
            seconds=round(seconds, 4),
        )
        self._backlog.forget(entry)
        self._ledger.prune(entry.epoch)

    # The actions

    def _perform(self, action: Any) -> Any:
        match action:
            case protocol.Register():
                self._run.number += 1
                self._run.open_committers()
                return self._run.number
            case protocol.Look():
                return self._look()
            case protocol.RestoreLog(epoch, _):
                return self._restore_log(epoch)
            case protocol.PreCommit(epoch, _):
                return self._pre_commit(epoch)
            case protocol.Decide(decision):
                self._ledger.decide(decision, query=self._id, barrier=None)
                failpoint("drain.decided")
            case protocol.Commit(decision):
                return self._run.commit(decision.id.epoch, decision.to_commit)
            case protocol.FinishLog(epoch, _):
                return self._finish_log(epoch)
            case protocol.Sweep(keep):
                self._run.abort_dangling(keep)
        return None

    def _look(self) -> CheckpointState:
        self._ledger.settle()
        self._backlog.reload()
        entry = self._backlog.first()
        self._run.next_epoch = epoch = entry.epoch if entry is not None else self._backlog.drained + 1
        return look(self._ledger, self._id, epoch, waits=entry is not None)

    def _restore_log(self, epoch: int) -> bool:
        """A later epoch than the first that waits is decided: an epoch is decided only when all before it are
        delivered, so just their mark is missing."""
        self._backlog.mark(epoch - 1)
        self._backlog.reload()
        entry = self._backlog.first()
        return entry is not None and entry.epoch == epoch

    def _pre_commit(self, epoch: int) -> protocol.Prepared | protocol.Failed:
        try:
            hints = self._run.committers[self._uid].hints()
            with ThreadPoolExecutor(_WRITERS, thread_name_prefix=f"penstock-drain-{self._uid}") as pool:
                written = list(pool.map(lambda committable: self._write(epoch, committable, hints), self._left))
            sealed = self._run.committers.seal(written, Deadline(self._limits.commit_timeout_seconds))
        except Exception as error:
            return protocol.Failed(error)
        failpoint("drain.prepared")
        return protocol.Prepared(sealed)

    def _write(self, epoch: int, committable: Committable, hints: Mapping[str, Any]) -> Committable:
        scope = WriterScope(self._run.scope(self._uid), epoch, self._attempt, committable.writer, 0, hints)
        batches = read_log(self._backlog.logs, log_of(committable))
        writer = self._sink.open_writer(scope)
        rows = total = 0
        try:
            for batch in batches:
                rows += batch.num_rows
                total += sum_of_hashes(batch)
                writer.write(batch.drop_columns([HASH_COLUMN]))
            if (rows, total % MODULO) != (committable.rows, committable.checksum % MODULO):
                raise LedgerCorrupt(
                    f"The in-flight log {log_of(committable).name} holds {rows} rows, decided were {committable.rows}.",
                    safe="nothing of it was delivered, and no later epoch of this sink either.",
                    to_do="restore the file from a copy of the checkpoint storage, then start the job again.",
                )
            payload = writer.pre_commit()
        except BaseException:
            writer.abort()
            raise
        return Committable(committable.sink, committable.writer, rows, committable.checksum, payload)

    def _finish_log(self, epoch: int) -> bool:
        entry = self._backlog.first()
        if entry is not None and entry.epoch == epoch:
            self._finish(entry, rewritten=0, seconds=0.0)
        return True


def generation_of(decision: DecisionId) -> int:
    return decision.generation // _RECOVERIES


def look(ledger: Ledger, query_id: str | None, epoch: int, *, waits: bool) -> CheckpointState:
    """What a drainer's ledger says of `epoch`, the first that is not delivered."""
    return CheckpointState(epoch, waits, ledger.decisions_since(epoch, query_id), ledger.claims(query_id))
