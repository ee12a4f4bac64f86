"""The driver's side of a SQL database: ends what writers left prepared, proves how it ended, and sweeps.

Proof is the marker in the same transaction as the rows; `penstock.sinks.sql.dialect` has the table. A committable's
name tells whether it is a prepared transaction or a staging table, so a sink whose mode was changed still finishes what
it left under the other. Of a staging table:

| marker | staging table | means |
|---|---|---|
| there | any | committed; the table may go |
| no | there | prepared: move it now |
| no | gone | lost, unless the marker may have been pruned |

The move is carried out before the decision, when the committables are sealed, and held open: so a row that breaks a
rule of the table is found while the epoch can still be given up. After the decision only its COMMIT is left. Where that
connection is gone (a restart, a cut) the staging tables are still there and the move is done again; the marker, in the
same transaction, tells whether an earlier one came through.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Generic, TypeVar

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover
from penstock.deadline import Deadline
from penstock.errors import OutcomeUnknown, PreCommitFailed, SystemUnavailable
from penstock.failpoints import active, failpoint
from penstock.sinks.sql.dialect import C, Dialect, Proof, name_of, split
from penstock.sinks.sql.tables import is_staging

POLL = 0.02
_T = TypeVar("_T")


class Lane(Generic[C]):
    """One connection at a time: opened when it is first needed, and again after it was lost."""

    def __init__(self, dialect: Dialect[C], connection: C | None = None) -> None:
        self._dialect, self._connection = dialect, connection

    @property
    def open(self) -> bool:
        return self._connection is not None and self._connection.open

    def take(self, deadline: Deadline) -> C:
        if self._connection is None or not self._connection.open:
            self._connection = self._dialect.connect(deadline)
        self._connection.limit(deadline)
        return self._connection

    def still(self, deadline: Deadline) -> C:
        """The same connection, never a new one: a transaction is open on it."""
        assert self._connection is not None
        self._connection.limit(deadline)
        return self._connection

    def run(self, work: Callable[[C], _T], deadline: Deadline) -> _T:
        """`work`, on a new connection where this one was lost, until the deadline."""
        while True:
            fresh = not self.open
            try:
                return work(self.take(deadline))
            except self._dialect.mapper.drivers as error:
                if not self._dialect.mapper.is_away(error):
                    raise
                self.close()
                # The server may have closed a connection that was idle since the last epoch: that is no failure.
                if fresh and deadline.passed():
                    raise
                if fresh:
                    time.sleep(min(POLL, deadline.remaining()))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Moves(Generic[C]):
    """The open transaction that moves one epoch, on its own connection: another statement could end it unseen."""

    def __init__(self, dialect: Dialect[C]) -> None:
        self._dialect = dialect
        self._lane = Lane(dialect)
        self._held: frozenset[str] | None = None  # the writers that the open transaction has moved; None: none is open

    def hold(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> None:
        self.release()
        names = frozenset(map(name_of, staged))

        def work(connection: C) -> None:
            gone = names - self._dialect.begin(connection, names, decided=False)
            if gone:
                raise PreCommitFailed(
                    f"{len(gone)} of {len(staged)} staging tables for {self._dialect.mapper.table} are gone, among "
                    f"them {min(gone)}.",
                    to_do="nothing: the epoch replays. If it repeats, find what drops tables penstock_stage_….",
                )
            self._move(connection, epoch, staged, decided=False)
            self._dialect.check_rules(connection)

        self._or_close(lambda: self._lane.run(work, deadline))
        self._held = names

    def begin(self, staged: Sequence[Committable], deadline: Deadline) -> list[Committable]:
        """Begin again, after the decision; the committables that are to be moved."""
        self.release()
        names = frozenset(map(name_of, staged))
        there = self._or_close(lambda: self._dialect.begin(self._lane.take(deadline), names, decided=True))
        self._held = frozenset()
        return [committable for committable in staged if name_of(committable) in there]

    def move(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> None:
        """Move in the open transaction. `OutcomeUnknown` where a staging table was changed."""
        self._or_close(lambda: self._move(self._lane.still(deadline), epoch, staged, decided=True))
        self._held = frozenset(map(name_of, staged))

    def commit(self, deadline: Deadline) -> None:
        """Commit the held move. After an error only the markers prove whether it is committed."""
        names, self._held = self._held or frozenset(), None
        self._or_close(lambda: self._dialect.finish(self._lane.still(deadline), names))

    def holds(self, staged: Sequence[Committable]) -> bool:
        """Whether the move of exactly these waits for its COMMIT."""
        return self._lane.open and self._held == frozenset(map(name_of, staged))

    def release(self) -> None:
        """Roll back the held move; the staging tables stay as they were."""
        if self._held is not None:
            self.close()

    def close(self) -> None:
        self._held = None
        self._lane.close()

    def _or_close(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except BaseException:
            self.close()
            raise

    def _move(self, connection: C, epoch: int, staged: Sequence[Committable], *, decided: bool) -> None:
        # In the order of the writers: of two with the same key, always the same one comes last.
        ordered = sorted(staged, key=lambda each: each.writer)
        for committable in ordered:
            self._dialect.mark(connection, committable, epoch)
        for committable in ordered:
            moved, rows = self._dialect.move(connection, committable), committable.payload["rows"]
            if committable.payload["key"] or moved == rows:
                continue
            there = self._dialect.count(connection, name_of(committable))
            if there == rows and not decided:
                raise self._dialect.mapper.not_all(there, moved)
            raise (OutcomeUnknown if decided else PreCommitFailed)(
                f"Of {there} rows in the staging table {name_of(committable)}, where its writer had put {rows}, "
                f"{moved} would be moved.",
                safe="nothing of it was moved.",
                to_do="find what changed it, or which trigger of the target drops rows; keep other programs away from "
                "tables penstock_stage_….",
            )


log = logging.getLogger(__name__)

#: Epochs whose markers are kept. Only the last one, or those in the in-flight log, are ever proven again.
KEPT_EPOCHS = 64
#: Markers are pruned with the first epoch of a run, and then once in so many: a delete is not free.
PRUNE_EVERY = 16

#: Connections that commit in parallel: each commit waits for the disk, and those waits overlap.
_LANES = 4
_OPEN_POLL = 0.005  # until the connection of a writer, which has prepared, is closed
_HINT_SECONDS = 5.0  # an epoch waits for it
_PRUNE_SECONDS = 10.0


class SqlCommitter(Committer, Generic[C]):
    """Ends and sweeps one sink's writers. Without `mode` the server decides it on first use."""

    fences_older_runs = True  # a writer reads the fence before it prepares

    def __init__(self, dialect: Dialect[C], mode: str | None = None, connection: C | None = None) -> None:
        self._dialect, self._mapper, self._mode = dialect, dialect.mapper, mode
        self._lane = Lane(dialect, connection)  # for everything but parallel commits
        self._lanes = [self._lane, *(Lane(dialect) for _ in range(_LANES - 1))]
        self._moves = Moves(dialect)
        self._threads = ThreadPoolExecutor(_LANES, thread_name_prefix="penstock-sql")
        self._is_set_up = False
        self._setting_up = threading.Lock()
        self._fence: int | None = None  # as this committer last raised it; only a newer run raises it further
        self._pruned: int | None = None
        #: The last epoch that this committer saw committed, and its writers that can be looked up again.
        self._newest: tuple[int, Sequence[Committable]] = (0, ())

    def hints(self) -> Mapping[str, Any]:
        """The mode, and the fence, from memory: a replaced driver must not learn the fence of the newer run. The server
        is asked only where no sweep has raised it yet; without a reply there is no hint, and writers do without."""
        deadline = Deadline(_HINT_SECONDS)

        def ask(connection: C) -> None:
            self._set_up(connection)
            self._fence = self._dialect.read_fence(connection)

        if self._fence is None:
            try:
                with self._mapper.mapped("asking for the fence"):
                    self._lane.run(ask, deadline)
            except SystemUnavailable as error:
                log.warning("%s", error)
                return {"mode": self._mode} if self._mode else {}
        return {"mode": self._mode, "fence": self._fence}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        self._look_back(deadline)
        prepared, staged = split(committables)
        if prepared:
            names = {name_of(committable) for committable in prepared}
            with self._mapper.mapped("looking for prepared transactions"):
                there = self._lane.run(lambda each: self._dialect.prepared(each, names), deadline)
            gone = names - there
            if gone:
                raise PreCommitFailed(
                    f"{len(gone)} of {len(prepared)} prepared transactions for {self._mapper.table} are gone, among "
                    f"them {min(gone)}.",
                    to_do="nothing: the epoch replays. If it repeats, find what rolls back prepared transactions.",
                )
        if staged:
            with self._mapper.mapped("moving staged rows"):
                self._moves.hold(staged[0].payload["epoch"], staged, deadline)
        return committables

    def release(self) -> None:
        self._moves.release()

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes = {committable.writer: Outcome.COMMITTED for committable in committables if not name_of(committable)}
        here, elsewhere = self._by_place(committables)
        for other, own in elsewhere:
            with contextlib.closing(other):
                outcomes.update(other.commit(epoch, own, deadline))
        prepared, staged = split(here)
        if staged:
            outcomes.update(self._commit_staged(epoch, staged, deadline))
        self._moves.release()  # an uncommitted move, or another epoch's: its locks would block the rest
        if active("commit.first") and len(prepared) > 1:
            first, *prepared = prepared
            outcomes[first.writer] = self._commit_one(self._lane, first, deadline)
            failpoint("commit.first")
        outcomes.update(self._commit_prepared(prepared, deadline))
        if all(outcome.visible for outcome in outcomes.values()):
            if any(map(name_of, here)):
                self._newest = epoch, self._known_again(here)
            self._prune(epoch)
        return outcomes

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """Writers without marker, transaction and staging table; those still prepared are committed again."""
        here = self._known_again(self._by_place(committables)[0])
        gone = self._committed_again(epoch, here, deadline)
        self._newest = epoch, [each for each in here if gone.get(each.writer, Outcome.COMMITTED).visible]
        lost = [committable for committable in here if gone.get(committable.writer) is Outcome.LOST]
        return {committable.writer: self._dialect.acknowledge(committable, epoch) for committable in lost}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._moves.release()
        here, elsewhere = self._by_place(committables)
        for other, own in elsewhere:
            with contextlib.closing(other):
                other.abort(own, deadline)
        prepared, staged = ([name_of(committable) for committable in part] for part in split(here))
        if prepared or staged:
            with self._mapper.mapped("aborting"):
                self._lane.run(lambda each: self._dialect.rollback(each, prepared, staged), deadline)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        self._moves.release()
        kept = {name_of(committable) for committable in keep}

        def sweep(connection: C) -> int:
            self._set_up(connection)
            self._fence = None  # in case it is raised and the reply is lost
            ended = self._dialect.fence(connection)
            self._fence = self._dialect.read_fence(connection)
            # After the fence: a writer that does not appear here sees it before it prepares.
            traces = self._dialect.recover(connection)
            dangling = {trace.name for trace in traces if trace.generation <= self._dialect.generation} - kept
            tables = {name for name in dangling if is_staging(name)}
            self._dialect.rollback(connection, dangling - tables, tables)
            return ended + len(dangling)

        with self._mapper.mapped("sweeping"):
            return self._lane.run(sweep, deadline)

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        with self._mapper.mapped("listing open transactions"):
            traces = self._lane.run(self._dialect.recover, deadline)
        return [
            replace(each, payload={"writer": each.name})
            for each in sorted(traces, key=lambda trace: trace.name)
            if each.generation <= self._dialect.generation
        ]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._moves.close()
        for lane in self._lanes:
            lane.close()

    def _known_again(self, committables: Sequence[Committable]) -> list[Committable]:
        return [committable for committable in committables if self._dialect.looks_back and name_of(committable)]

    def _committed_again(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[int, Outcome]:
        """The outcome of committed writers that have no marker now: each that the server still has is committed again.
        All are looked up: commits run in parallel, so any of them may have reached a replica without the others.
        `OutcomeUnknown` while one is prepared and cannot be committed: a sweep would abort it."""
        names = {name_of(committable) for committable in committables}

        def ask(connection: C) -> tuple[Proof, set[str]]:
            self._set_up(connection)
            proof = self._dialect.prove(connection, names)
            if names <= proof.marked:
                return proof, set()
            # Before the markers: a writer without a trace now and a marker afterwards was not committed meanwhile.
            there = {trace.name for trace in self._dialect.recover(connection)}
            return self._dialect.prove(connection, names), there

        if not names:
            return {}
        with self._mapper.mapped("looking back"):
            proof, there = self._lane.run(ask, deadline)
        gone = [committable for committable in committables if name_of(committable) not in proof.marked]
        if not gone:
            return {}
        prepared = [each for each in gone if name_of(each) in there]
        log.warning(
            "%d writers of epoch %d were committed to %s, which lost them: %d are still prepared and committed again",
            len(gone), epoch, self._mapper.table, len(prepared),
        )  # fmt: skip
        # Without any marker, though the sink has committed, the database is a copy from before its first commit.
        outcomes = {each.writer: _without_trace(each, proof) if proof.has_markers else Outcome.LOST for each in gone}
        outcomes.update(self.commit(epoch, prepared, deadline))
        self._newest = epoch, committables  # not only those committed again
        unknown = [committable for committable in prepared if outcomes[committable.writer] is Outcome.UNKNOWN]
        if unknown:
            raise OutcomeUnknown(
                f"Epoch {epoch} was committed to {self._mapper.table}, which has fallen back behind that: "
                f"{len(unknown)} writers are prepared again, among them {name_of(unknown[0])}, and could not be "
                "committed in time.",
                safe="they stay prepared; nothing was aborted.",
                to_do="nothing: they are committed as soon as the server lets them.",
            )
        return outcomes

    def _look_back(self, deadline: Deadline) -> None:
        """Before each decision: a replica that replaced the server must have the last committed epoch."""
        epoch, last = self._newest
        again = self._committed_again(epoch, last, deadline)
        # The drainer's committer of the same sink may have pruned some: nothing is proven about those.
        self._newest = epoch, [each for each in last if again.get(each.writer) is not Outcome.UNKNOWN]
        gone = [name_of(committable) for committable in last if again.get(committable.writer) is Outcome.LOST]
        if gone:
            raise PreCommitFailed(
                f"What was committed last to {self._mapper.table} is not there any more: {gone[0]}"
                f"{f' and {len(gone) - 1} others' if gone[1:] else ''}.",
                to_do="see whether another server has replaced the one that confirmed it.",
            )

    def _set_up(self, connection: C) -> None:
        with self._setting_up:
            if not self._is_set_up:
                self._mode = self._mode or self._dialect.mode(connection)
                self._dialect.set_up(connection)
                self._is_set_up = True

    def _by_place(
        self, committables: Sequence[Committable]
    ) -> tuple[list[Committable], list[tuple[SqlCommitter[C], list[Committable]]]]:
        """The committables that this committer ends, and those for another table, each with their committer."""
        here: list[Committable] = []
        others: dict[Dialect[C], list[Committable]] = {}
        for committable in committables:
            other = self._dialect.elsewhere(committable.payload)
            (here if other is None else others.setdefault(other, [])).append(committable)
        return here, [(SqlCommitter(dialect, self._mode), own) for dialect, own in others.items()]

    def _commit_prepared(self, prepared: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        def work(lane: Lane[C], own: Sequence[Committable]) -> dict[int, Outcome]:
            return {committable.writer: self._commit_one(lane, committable, deadline) for committable in own}

        if len(prepared) == 1:
            return work(self._lane, prepared)
        parts = [prepared[number::_LANES] for number in range(min(_LANES, len(prepared)))]
        outcomes: dict[int, Outcome] = {}
        for done in list(self._threads.map(work, self._lanes, parts)):
            outcomes.update(done)
        return outcomes

    def _commit_one(self, lane: Lane[C], committable: Committable, deadline: Deadline) -> Outcome:
        """Commit until it succeeds, or the marker proves its outcome, or time is up."""
        why = "no time"
        while not deadline.passed():
            pause = POLL
            try:
                if self._dialect.commit(lane.take(deadline), name_of(committable)):
                    return Outcome.COMMITTED
                outcome = self._proven(lane, committable, deadline)
                if outcome is not None:
                    return outcome
                why, pause = "its transaction is still open", _OPEN_POLL
            except self._mapper.drivers as error:
                why, _ = self._judge(lane, error)
            time.sleep(min(pause, deadline.remaining()))
        log.warning("%s for %s stays unknown: %s", name_of(committable), self._mapper.table, why)
        return Outcome.UNKNOWN

    def _commit_staged(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        """The held COMMIT, or the move once more, until it succeeds, or the markers prove it, or time is up."""
        outcomes: dict[int, Outcome] = {}
        why = "no time"
        waiting = list(staged)
        while not deadline.passed():
            try:
                if not self._moves.holds(waiting):
                    rest = self._moves.begin(waiting, deadline)
                    for committable in waiting:
                        if committable not in rest:
                            proven = self._proven(self._lane, committable, deadline)
                            outcomes[committable.writer] = proven or Outcome.UNKNOWN
                    waiting = rest
                    if not waiting:
                        return outcomes
                    self._moves.move(epoch, waiting, deadline)
                self._moves.commit(deadline)
            except OutcomeUnknown as error:
                why = str(error)
                break
            except self._mapper.drivers as error:
                self._moves.release()
                why, curable = self._judge(self._lane, error)
                if not curable:
                    break
                time.sleep(min(POLL, deadline.remaining()))
            else:
                return {**outcomes, **{committable.writer: Outcome.COMMITTED for committable in waiting}}
        log.error("epoch %d for %s is decided and waits in staging tables: %s", epoch, self._mapper.table, why)
        return {**{committable.writer: Outcome.UNKNOWN for committable in waiting}, **outcomes}

    def _proven(self, lane: Lane[C], committable: Committable, deadline: Deadline) -> Outcome | None:
        """The outcome without transaction and staging table, by the marker. None while its transaction is open."""
        connection = lane.take(deadline)
        self._set_up(connection)
        name = name_of(committable)
        proof = self._dialect.prove(connection, [name])
        if name in proof.open:
            return None
        if name in proof.marked:
            return Outcome.ALREADY_COMMITTED
        return _without_trace(committable, proof)

    def _judge(self, lane: Lane[C], error: Exception) -> tuple[str, bool]:
        """The text of a client's error, and whether a retry may help. A violated constraint or a missing right fails
        the next time as well: it is raised at once where the dialect asks for it. An error without a code comes from
        the network and proves nothing."""
        fault = self._mapper.read(error)
        explained = self._mapper.explain(fault, "committing")
        if isinstance(explained, SystemUnavailable):
            lane.close()
        curable = explained.retryable or not fault.code
        if not curable and self._dialect.raises_what_stays:
            raise type(explained)(
                explained.happened,
                safe="the epoch is decided and its rows are kept, prepared, until they can be committed.",
                to_do=explained.to_do,
            ) from error
        return fault.text, curable

    def _prune(self, epoch: int) -> None:
        if self._pruned is not None and abs(epoch - self._pruned) < PRUNE_EVERY:
            return
        self._pruned = epoch
        try:
            self._dialect.prune(self._lane.take(Deadline(_PRUNE_SECONDS)), epoch - KEPT_EPOCHS)
        except Exception as error:  # the next prune catches up
            log.warning("old markers of %s could not be pruned: %s", self._mapper.table, type(error).__name__)
            self._lane.close()


def _without_trace(committable: Committable, proof: Proof) -> Outcome:
    """The outcome without marker and preparation; unknown if the sink's row is gone, as its tables were recreated."""
    younger = proof.pruned is not None and committable.payload["at"] > proof.pruned
    return Outcome.LOST if younger else Outcome.UNKNOWN
