"""The driver's connections, and the transaction that moves the staging tables of one epoch.

| marker | staging table | means |
|---|---|---|
| there | any | committed; the table may go |
| no | there | prepared: move it now |
| no | gone | lost, unless the marker may have been pruned |

The move is carried out before the decision, when the committables are sealed, and held open: so a row that breaks a
rule of the table is found while the epoch can still be given up. After the decision only its COMMIT is left. Where that
connection is gone (a restart, a cut) the staging tables are still there and the move is done again; the marker, in the
same transaction, tells whether an earlier one came through."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import OutcomeUnknown, PreCommitFailed
from penstock.sinks.sql.dialect import C, Dialect, name_of

if TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable
    from penstock.deadline import Deadline

POLL = 0.02
_T = TypeVar("_T")


class Lane(Generic[C]):
    """One connection at a time: made when it is first needed, and again after it was lost."""

    def __init__(self, dialect: Dialect[C], connection: C | None = None) -> None:
        self._dialect, self._connection = dialect, connection

    @property
    def open(self) -> bool:
        return self._connection is not None and self._connection.open

    def take(self, deadline: Deadline) -> C:
        """The connection, which waits for no answer beyond the deadline."""
        if self._connection is None or not self._connection.open:
            self._connection = self._dialect.connect(deadline)
        self._connection.limit(deadline)
        return self._connection

    def still(self, deadline: Deadline) -> C:
        """The connection as it is, never a new one: a transaction is open on it."""
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
                # A connection that idled since the last epoch may have been closed by the server: that is no failure.
                if fresh and deadline.passed():
                    raise
                if fresh:
                    time.sleep(min(POLL, deadline.remaining()))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Moves(Generic[C]):
    """The transaction that moves one epoch; at most one is held at a time, on a connection of its own: another
    statement on it could end it unseen."""

    def __init__(self, dialect: Dialect[C]) -> None:
        self._dialect = dialect
        self._lane = Lane(dialect)
        self._held: frozenset[str] | None = None  # what the open transaction has moved; None where none is open

    def hold(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> None:
        """Carry out the move of all of `staged` and leave it uncommitted."""
        self.release()
        names = frozenset(map(name_of, staged))

        def work(connection: C) -> None:
            gone = names - self._dialect.begin(connection, names, decided=False)
            if gone:
                raise PreCommitFailed(
                    f"{len(gone)} of {len(staged)} staging tables for {self._dialect.mapper.table} are gone, among "
                    f"them {min(gone)}.",
                    safe="nothing of this epoch is visible.",
                    to_do="nothing: the epoch replays. If it repeats, see who drops tables penstock_stage_….",
                )
            self._move(connection, epoch, staged, decided=False)
            self._dialect.check_rules(connection)

        self._or_close(lambda: self._lane.run(work, deadline))
        self._held = names

    def begin(self, staged: Sequence[Committable], deadline: Deadline) -> list[Committable]:
        """Begin anew, after the decision; those that are to be moved."""
        self.release()
        names = frozenset(map(name_of, staged))
        there = self._or_close(lambda: self._dialect.begin(self._lane.take(deadline), names, decided=True))
        self._held = frozenset()
        return [committable for committable in staged if name_of(committable) in there]

    def move(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> None:
        """Move into the transaction that was begun. `OutcomeUnknown` where somebody changed a staging table."""
        self._or_close(lambda: self._move(self._lane.still(deadline), epoch, staged, decided=True))
        self._held = frozenset(map(name_of, staged))

    def commit(self, deadline: Deadline) -> None:
        """Commit what is held. After an error only the markers tell whether it is."""
        names, self._held = self._held or frozenset(), None
        self._or_close(lambda: self._dialect.finish(self._lane.still(deadline), names))

    def holds(self, staged: Sequence[Committable]) -> bool:
        """Whether the move of exactly these waits for its COMMIT."""
        return self._lane.open and self._held == frozenset(map(name_of, staged))

    def release(self) -> None:
        """Roll back what is held; the staging tables are as they were."""
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
        # In the order of the writers: where two have the same key, it is always the same one that comes last.
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
                to_do="find out who changed it, or which trigger of the target leaves rows out; keep others away "
                "from tables penstock_stage_….",
            )
