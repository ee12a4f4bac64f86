"""The driver's hand on PostgreSQL: ends what writers left prepared, and proves how it ended.

Proof is the marker that stands in the same transaction as the rows; `penstock.sinks.sql.markers` has the table. A
committable says itself whether it is a prepared transaction or a staging table, so a sink whose mode was changed still
finishes what it left under the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import PenstockError, PreCommitFailed, SystemUnavailable
from penstock.failpoints import active, failpoint
from penstock.sinks.postgres import faults
from penstock.sinks.postgres.line import Line
from penstock.sinks.postgres.moves import Moves, name_of
from penstock.sinks.postgres.server import client
from penstock.sinks.postgres.sweep import Sweep
from penstock.sinks.postgres.writer import application
from penstock.sinks.sql.markers import KEPT_EPOCHS, PRUNE_EVERY
from penstock.sinks.sql.names import literal

if TYPE_CHECKING:
    from penstock.sinks.postgres.sink import PostgresSink

log = logging.getLogger(__name__)

#: Connections that commit side by side: each COMMIT PREPARED waits for the disk, and those waits are shared.
_LINES = 4
_POLL = 0.02
_HINT_SECONDS = 5.0


class PostgresCommitter(Committer):
    """Commits, aborts and sweeps one sink's writers. Connects when it is first used."""

    def __init__(self, sink: PostgresSink, scope: SinkScope) -> None:
        self._sink, self._place, self._scope = sink, sink.place, scope
        name = application(scope.prefix, scope.generation, "driver")
        self._lines = [Line(sink.server, str(self._place), name) for _ in range(_LINES)]
        self._moving = Line(sink.server, str(self._place), name)
        self._moves = Moves(self._moving, self._place, scope.prefix, scope.generation, sink.lock_seconds)
        self._sweep = Sweep(self._lines[0], self._place, scope)
        self._threads = ThreadPoolExecutor(_LINES, thread_name_prefix="penstock-postgres")
        self._mode: str | None = None
        self._settling = threading.Lock()

    def hints(self) -> Mapping[str, Any]:
        """The settled mode, and the fence. Without an answer nothing is hinted: a writer then asks for itself, or an
        in-flight log takes the rows."""
        deadline = Deadline(_HINT_SECONDS)
        try:
            with self._lines[0].naming("asking for the fence"):
                self._settle(self._lines[0], deadline)
                return {"mode": self._mode, "fence": self._sweep.fence(deadline)}
        except SystemUnavailable as error:
            log.warning("%s", error)
            return {}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        """Every prepared transaction must be there; staged rows are moved, up to the COMMIT."""
        prepared, staged = _kinds(committables)
        if prepared:
            with self._lines[0].naming("looking for prepared transactions"):
                there = set(self._sweep.gids(deadline))
            gone = [one for one in prepared if name_of(one) not in there]
            if gone:
                raise PreCommitFailed(
                    f"{len(gone)} of {len(prepared)} prepared transactions for {self._place} are gone, among them "
                    f"{name_of(gone[0])}.",
                    safe="nothing of this epoch is visible.",
                    to_do="nothing: the epoch replays. If it repeats, see who rolls back prepared transactions.",
                )
        if staged:
            self._moves.hold(staged[0].payload["epoch"], staged, deadline)
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {one.writer: Outcome.COMMITTED for one in committables if not _wrote(one)}
        prepared, staged = _kinds(committables)
        if deadline.passed():
            return {**outcomes, **{one.writer: Outcome.UNKNOWN for one in (*prepared, *staged)}}
        if staged:
            outcomes.update(self._commit_staged(epoch, staged, deadline))
        if prepared and active("commit.first") and len(prepared) > 1:
            outcomes[prepared[0].writer] = self._commit_one(self._lines[0], prepared.pop(0), deadline)
            failpoint("commit.first")
        outcomes.update(self._commit_prepared(prepared, deadline))
        if epoch % PRUNE_EVERY == 0 and all(outcome.visible for outcome in outcomes.values()):
            self._prune(epoch)
        return outcomes

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        prepared, staged = _kinds(committables)
        self._moves.release()
        if prepared or staged:
            with self._lines[0].naming("aborting"):
                self._sweep.roll_back([name_of(one) for one in prepared], deadline)
                self._sweep.drop([name_of(one) for one in staged], deadline)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        self._moves.release()
        with self._lines[0].naming("sweeping"):
            self._settle(self._lines[0], deadline)
            return self._sweep.all({name_of(one) for one in keep if _wrote(one)}, deadline)

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        with self._lines[0].naming("looking for what is open"):
            return self._sweep.leftovers(deadline)

    def close(self) -> None:
        self._moves.release()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for line in (*self._lines, self._moving):
            line.drop()

    def _settle(self, line: Line, deadline: Deadline) -> None:
        """Know the mode, and have the sink's own tables."""
        with self._settling:
            if self._mode is None:
                mode = self._sink.settled_mode(lambda *words: line.ask(deadline, *words))
                self._sink.settle(self._scope.prefix, line, deadline)
                self._mode = mode

    def _commit_prepared(self, prepared: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        if len(prepared) == 1:
            return {prepared[0].writer: self._commit_one(self._lines[0], prepared[0], deadline)}
        parts = [prepared[number::_LINES] for number in range(min(_LINES, len(prepared)))]

        def work(line: Line, own: Sequence[Committable]) -> dict[int, Outcome]:
            return {one.writer: self._commit_one(line, one, deadline) for one in own}

        outcomes: dict[int, Outcome] = {}
        for done in list(self._threads.map(work, self._lines, parts)):
            outcomes.update(done)
        return outcomes

    def _commit_one(self, line: Line, one: Committable, deadline: Deadline) -> Outcome:
        """COMMIT PREPARED until it succeeds, or the marker tells what became of it, or time is up."""
        why: faults.Said | None = None
        while not deadline.passed():
            try:
                line.ask(deadline, f"COMMIT PREPARED {literal(name_of(one))}")
            except client().psycopg.Error as error:
                why = faults.said(error, self._sink.server)
                try:
                    if why.state == faults.UNDEFINED_OBJECT:
                        return self._proven(line, one, deadline)
                except client().psycopg.Error as other:
                    why = faults.said(other, self._sink.server)
                self._raise_if_hopeless(why)
                time.sleep(min(_POLL, deadline.remaining()))
            else:
                return Outcome.COMMITTED
        log.warning("%s of sink %s stays unknown: %s", name_of(one), self._scope.uid, why.text if why else "no time")
        return Outcome.UNKNOWN

    def _commit_staged(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        """The held COMMIT, or the move once more, until it succeeds, or the markers tell, or time is up."""
        why: faults.Said | None = None
        while not deadline.passed():
            try:
                if not self._moves.holds(staged):  # a driver that was replaced may still hold its own
                    self._sweep.end_older_drivers(deadline)
                found = self._moves.commit(epoch, staged, deadline)
                return {
                    one.writer: found[name_of(one)] or self._proven(self._lines[0], one, deadline) for one in staged
                }
            except client().psycopg.Error as error:
                why = faults.said(error, self._sink.server)
                self._raise_if_hopeless(why)
                time.sleep(min(_POLL, deadline.remaining()))
        log.warning("epoch %d of sink %s stays unknown: %s", epoch, self._scope.uid, why.text if why else "no time")
        return {one.writer: Outcome.UNKNOWN for one in staged}

    def _proven(self, line: Line, one: Committable, deadline: Deadline) -> Outcome:
        """Neither transaction nor staging table is there: the marker decides."""
        self._settle(line, deadline)
        place = self._place
        [(marked, pruned)] = line.ask(
            deadline,
            f"SELECT EXISTS (SELECT FROM {place.markers} WHERE sink = $1 AND writer = $2), "
            f"(SELECT pruned FROM {place.sinks} WHERE sink = $1)",
            self._scope.prefix,
            name_of(one),
        )
        if marked:
            return Outcome.ALREADY_COMMITTED
        # Without its row the sink's tables were made anew, or emptied: then nothing is proven.
        return Outcome.LOST if pruned is not None and one.payload["at"] > pruned else Outcome.UNKNOWN

    def _raise_if_hopeless(self, why: faults.Said) -> None:
        """A broken rule or a missing right will be there at the next try as well: say so at once."""
        if not why.state or why.state in (faults.OBJECT_IN_USE, faults.UNDEFINED_OBJECT, faults.LOCKED):
            return
        error = faults.named(why, self._sink.server, str(self._place), "committing")
        if not error.retryable:
            error.safe = "the epoch is decided and its rows are kept, prepared, until they can be committed."
            raise type(error)(error.happened, safe=error.safe, to_do=error.to_do)

    def _prune(self, epoch: int) -> None:
        place = self._place
        try:
            self._lines[0].ask(
                Deadline(_HINT_SECONDS),
                f"WITH gone AS (DELETE FROM {place.markers} WHERE sink = $1 AND epoch < $2 RETURNING at) "
                f"UPDATE {place.sinks} SET pruned = GREATEST(pruned, (SELECT max(at) FROM gone)) "
                "WHERE sink = $1 AND EXISTS (SELECT FROM gone)",
                self._scope.prefix,
                epoch - KEPT_EPOCHS,
            )
        except (client().psycopg.Error, PenstockError) as error:  # the next one prunes more
            log.warning("markers of sink %s could not be pruned: %s", self._scope.uid, type(error).__name__)


def _wrote(one: Committable) -> bool:
    return bool(one.payload.get("writer"))


def _kinds(committables: Sequence[Committable]) -> tuple[list[Committable], list[Committable]]:
    """Prepared transactions and staging tables; writers that wrote nothing are neither."""
    prepared = [one for one in committables if _wrote(one) and one.payload["kind"] == "prepared"]
    staged = [one for one in committables if _wrote(one) and one.payload["kind"] == "staged"]
    return prepared, staged
