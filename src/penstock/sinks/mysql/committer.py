"""The driver's hand on the database: commits, aborts, sweeps, whichever way a writer took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover
from penstock.deadline import Deadline
from penstock.errors import PenstockError, PreCommitFailed, SystemUnavailable
from penstock.failpoints import active, failpoint
from penstock.sinks.mysql import faults, lanes, staged, xa
from penstock.sinks.mysql.faults import ServerError
from penstock.sinks.mysql.markers import Markers, cut
from penstock.sinks.mysql.names import Names
from penstock.sinks.mysql.session import Login, Session
from penstock.sinks.sql.markers import PRUNE_EVERY

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_POLL = 0.05
_ANSWER_SECONDS = 60.0  # where no deadline says otherwise
_HINT_SECONDS = 5.0  # an epoch waits for it


class MySqlCommitter(Committer):
    """Takes committables of both ways, whatever the sink's mode is now: an earlier run may have had another."""

    def __init__(self, login: Login, names: Names, mode: str, session: Session | None = None) -> None:
        self._login, self._names, self.mode = login, names, mode
        self._markers = Markers(names)
        self._session = session
        self._moved: tuple[str, ...] = ()  # what the open transaction of the session has moved, if there is one
        self._pruned: int | None = None
        self._fence: int | None = None  # as this committer has last raised it; only a newer run's is another

    def hints(self) -> Mapping[str, Any]:
        """The mode, and the fence, from memory. Only where no sweep has raised it yet is the server asked; without an
        answer it is not hinted, and a writer goes without."""
        if self._fence is None:
            try:
                with self._named("reading its marker tables"):
                    self._fence = self._retried(self._markers.fence, Deadline(_HINT_SECONDS))
            except SystemUnavailable as error:
                log.warning("%s", error)
                return {"mode": self.mode}
        return {"mode": self.mode, "fence": self._fence}

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        """Every transaction must be open and every staging table there; staged rows are moved, as a trial that the
        commit completes."""
        by_xa, by_table = _split(committables)
        with self._named("confirming what is prepared"):
            self._retried(lambda session: self._confirm(session, by_xa, by_table), deadline)
            if by_table:
                self._retried(lambda session: self._move(session, by_table[0].payload["epoch"], by_table), deadline)
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        committables, elsewhere = self._ours(committables)
        by_xa, by_table = _split(committables)
        outcomes = {one.writer: Outcome.COMMITTED for one in committables if not one.payload.get("how")}
        for other, own in elsewhere:
            outcomes.update(other.commit(epoch, own, deadline))
            other.close()
        if by_table:
            outcomes.update(self._commit_staged(epoch, by_table, deadline))
        self._forget_move()
        if active("commit.first") and len(by_xa) > 1:
            outcomes.update(self._end_xa(by_xa[:1], deadline))
            failpoint("commit.first")
            by_xa = by_xa[1:]
        outcomes.update(self._end_xa(by_xa, deadline))
        if all(outcome.visible for outcome in outcomes.values()):
            self._prune(epoch)
        return outcomes

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._forget_move()
        committables, elsewhere = self._ours(committables)
        for other, own in elsewhere:
            other.abort(own, deadline)
            other.close()
        by_xa, by_table = _split(committables)
        with self._named("aborting"):
            self._retried(lambda session: self._end(session, _names(by_xa), _names(by_table), deadline), deadline)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        self._forget_move()
        kept = _names(keep)

        def sweep(session: Session) -> int:
            self._markers.create(session)
            self._fence = None
            self._markers.raise_fence(session)
            self._fence = self._markers.fence(session)
            # After the fence: a writer that is in neither list now will see it before it prepares.
            open_now = {name for name in self._markers.open(session) if self._mine(name, kept)}
            tables = {name for name in staged.there(session, self._names) if self._mine(name, kept)}
            self._end(session, open_now, tables, deadline)
            return len(open_now | tables)

        with self._named("looking for leftovers"):
            return self._retried(sweep, deadline)

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        def look(session: Session) -> list[Leftover]:
            open_now, tables = self._markers.open(session), staged.there(session, self._names)
            found = []
            for name in sorted({*open_now, *tables}):
                numbers = self._names.numbers_in(name)
                if numbers is None or numbers["generation"] > self._names.generation:
                    continue
                at = datetime.fromisoformat(open_now[name].since).replace(tzinfo=UTC) if name in open_now else None
                found.append(
                    Leftover(
                        name,
                        numbers["generation"],
                        numbers.get("epoch"),
                        numbers.get("partition"),
                        at.timestamp() if at is not None else None,
                        {"how": "xa" if "epoch" in numbers else "staged", "writer": name},
                    )
                )
            return found

        with self._named("looking for what is open"):
            return self._retried(look, deadline)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()  # rolls back a trial move
        self._session, self._moved = None, ()

    # ── before the decision

    def _confirm(self, session: Session, by_xa: Sequence[Committable], by_table: Sequence[Committable]) -> None:
        gone = _names(by_xa) - self._markers.open(session, _names(by_xa)).keys()
        if by_table:
            gone |= _names(by_table) - staged.there(session, self._names)
        if gone:
            raise PreCommitFailed(
                f"{len(gone)} of {len(by_xa) + len(by_table)} writers for {self._names.table} are no longer prepared, "
                f"among them {min(gone)}.",
                safe="nothing of this epoch is visible; it replays from the same positions.",
                to_do="nothing if the job was restarted; otherwise keep other programs from rolling back our "
                "transactions or dropping our tables.",
            )

    def _move(self, session: Session, epoch: int, committables: Sequence[Committable]) -> None:
        self._forget_move()
        staged.move(session, self._names, self._markers, epoch, committables)
        self._moved = tuple(sorted(_names(committables)))

    def _forget_move(self) -> None:
        if self._moved and self._session is not None:
            staged.rollback(self._session)
        self._moved = ()

    # ── after it

    def _commit_staged(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        while True:
            left = [one for one in committables if one.writer not in outcomes]
            try:
                outcomes.update(self._retried(partial(self._move_left, epoch=epoch, left=left), deadline))
            except (ServerError, PenstockError) as error:
                reason = error.text if isinstance(error, ServerError) else str(error)
                again = isinstance(error, ServerError) and error.code in (faults.LOCK_TIMEOUT, faults.DEADLOCK)
                if not again or deadline.passed():
                    log.error(
                        "epoch %s of %s is decided and waits in staging tables: %s", epoch, self._names.table, reason
                    )
                    return {**{one.writer: Outcome.UNKNOWN for one in left}, **outcomes}
            if len(outcomes) == len(committables):
                return outcomes

    def _move_left(self, session: Session, epoch: int, left: Sequence[Committable]) -> dict[int, Outcome]:
        if self._moved == tuple(sorted(_names(left))):
            outcome = Outcome.COMMITTED
        else:
            self._forget_move()
            there = staged.there(session, self._names)  # first: a table goes only after its marker came
            done = self._markers.committed(session, _names(left))
            pruned = self._markers.pruned(session)
            ended = done | (_names(left) - there)
            proven = {one.writer: self._verdict(one, done, pruned) for one in left if _name(one) in ended}
            if proven:
                staged.drop(session, self._names, done & there)
                return proven
            for one in self._markers.open(session, _names(left)).values():
                cut(session, one)  # a driver that tried the move and was cut off, or a zombie's
            self._move(session, epoch, left)
            outcome = Outcome.COMMITTED
        self._moved = ()
        session.execute("COMMIT")
        try:
            staged.drop(session, self._names, _names(left))
        except ServerError as error:
            log.warning("staging tables of %s are left for the next sweep: %s", self._names.table, error.text)
        return {one.writer: outcome for one in left}

    @staticmethod
    def _verdict(one: Committable, done: Collection[str], pruned: str) -> Outcome:
        if _name(one) in done:
            return Outcome.ALREADY_COMMITTED
        return Outcome.LOST if str(one.payload["at"]) > pruned else Outcome.UNKNOWN

    def _end_xa(self, committables: Sequence[Committable], deadline: Deadline) -> dict[int, Outcome]:
        outcomes, self._session = lanes.commit(self._login, self._session, self._markers, committables, deadline)
        return outcomes

    def _prune(self, epoch: int) -> None:
        if self._pruned is not None and abs(epoch - self._pruned) < PRUNE_EVERY:
            return
        self._pruned = epoch
        try:
            self._retried(lambda session: self._markers.prune(session, epoch))
        except ServerError as error:  # the next time will do
            log.warning("old markers of %s could not be pruned: %s", self._names.table, error.text)

    # ── undone

    def _end(self, session: Session, open_now: Collection[str], tables: Collection[str], deadline: Deadline) -> None:
        left = xa.end(session, self._names, self._markers, {*open_now, *tables}, deadline)
        if left:
            raise SystemUnavailable(
                f"{len(left)} open transactions on {self._names.table} could not be rolled back in time, among them "
                f"{min(left)}.",
                safe="their rows stay invisible; the locks they hold keep others waiting.",
                to_do="look at XA RECOVER and the server's process list; the next start of the job tries again.",
            )
        staged.drop(session, self._names, tables)

    def _mine(self, name: str, kept: Collection[str]) -> bool:
        generation = self._names.generation_in(name)
        return name not in kept and generation is not None and generation <= self._names.generation

    def _ours(
        self, committables: Sequence[Committable]
    ) -> tuple[list[Committable], list[tuple[MySqlCommitter, list[Committable]]]]:
        """Those for this table, and, for each other one, those of a run before the program named another table."""
        groups: dict[tuple[str, str], list[Committable]] = {}
        here = (self._names.database, self._names.table)
        for one in committables:
            database, table = one.payload.get("table") or here
            groups.setdefault((database, table), []).append(one)
        ours = groups.pop(here, [])
        others = []
        for (database, table), own in groups.items():
            names = replace(self._names, database=database, table=table)
            others.append((MySqlCommitter(self._login, names, self.mode), own))
        return ours, others

    # ── the connection

    def _retried(self, work: Callable[[Session], _T], deadline: Deadline | None = None) -> _T:
        """`work` with the driver's session, on a new one where that was lost, until the deadline; once without."""
        fresh = False
        while True:
            try:
                if self._session is None or not self._session.open:
                    fresh, self._moved = True, ()
                    self._session = Session(self._login, seconds=_seconds(deadline))
                self._session.limit(_seconds(deadline))
                return work(self._session)
            except ServerError as error:
                if not error.lost:
                    raise
                self.close()
                # A connection that idled since the last epoch may have been closed by the server: that is no failure.
                if fresh and (deadline is None or deadline.passed()):
                    raise
                if fresh:
                    time.sleep(_POLL)

    def _named(self, doing: str) -> Any:
        return faults.named(self._login.where, self._names.table, doing)


def _seconds(deadline: Deadline | None) -> float:
    return _ANSWER_SECONDS if deadline is None else deadline.remaining()


def _split(committables: Collection[Committable]) -> tuple[list[Committable], list[Committable]]:
    by_way: dict[str, list[Committable]] = {"xa": [], "staged": []}
    for one in sorted(committables, key=lambda one: one.writer):
        if one.payload.get("how"):
            by_way[one.payload["how"]].append(one)
    return by_way["xa"], by_way["staged"]


def _name(one: Committable) -> str:
    return str(one.payload["writer"])


def _names(committables: Collection[Committable]) -> set[str]:
    return {_name(one) for one in committables if one.payload.get("how")}
