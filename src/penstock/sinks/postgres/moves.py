"""Staged writers: every staging table of an epoch moved into the target, marked and dropped, in one transaction.

The transaction is carried out before the decision, when the committables are sealed, and held open: so a row that
breaks a rule of the table is found while the epoch can still be given up. After the decision only its COMMIT is left.
Where that connection is gone (a restart, a cut) the staging tables are still there and the move is done again; the
marker, in the same transaction, tells whether an earlier one came through.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.errors import OutcomeUnknown, PreCommitFailed
from penstock.sinks.postgres.faults import SYSTEM
from penstock.sinks.postgres.server import client
from penstock.sinks.sql.faults import not_all
from penstock.sinks.sql.names import quoted

if TYPE_CHECKING:
    from penstock.deadline import Deadline
    from penstock.sinks.postgres.catalog import Place
    from penstock.sinks.postgres.line import Line

log = logging.getLogger(__name__)


def name_of(committable: Committable) -> str:
    """The prepared transaction or staging table of a committable."""
    return str(committable.payload["writer"])


class Moves:
    """The transaction that moves one epoch; at most one is held at a time."""

    def __init__(self, line: Line, place: Place, prefix: str, generation: int, lock_seconds: float) -> None:
        self._line, self._place = line, place
        self._prefix, self._generation, self._lock_seconds = prefix, generation, lock_seconds
        self._held: frozenset[str] = frozenset()

    def hold(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> None:
        """Carry out the move of all of `staged` and leave it uncommitted."""
        self.release()
        try:
            with self._line.naming("moving staged rows"):
                there = self._start(staged, deadline)
                if len(there) < len(staged):
                    raise PreCommitFailed(
                        f"{len(staged) - len(there)} of {len(staged)} staging tables for {self._place} are gone.",
                        safe="nothing of this epoch is visible.",
                        to_do="nothing: the epoch replays. If it repeats, see who drops tables penstock_stage_….",
                    )
                self._move(epoch, staged, deadline, decided=False)
        except BaseException:
            self._line.drop()
            raise
        self._held = frozenset(map(name_of, staged))

    def commit(self, epoch: int, staged: Sequence[Committable], deadline: Deadline) -> Mapping[str, Outcome | None]:
        """What is proven of each, by name; None where nothing is left of it and its marker has to be asked for.
        Raises psycopg's errors."""
        names = frozenset(map(name_of, staged))
        if self.holds(staged):
            self._held = frozenset()
            self._line.ask(deadline, "COMMIT")
            return dict.fromkeys(names, Outcome.COMMITTED)
        self.release()
        try:
            there = self._start(staged, deadline)
            rest = [one for one in staged if name_of(one) in there]
            self._move(epoch, rest, deadline, decided=True)
            self._line.ask(deadline, "COMMIT")
        except BaseException:
            self._line.drop()
            raise
        return {name: Outcome.COMMITTED if name in there else None for name in names}

    def holds(self, staged: Sequence[Committable]) -> bool:
        """Whether the move of exactly these waits for its COMMIT."""
        return self._line.open and self._held == frozenset(map(name_of, staged))

    def release(self) -> None:
        """Roll back what is held; the staging tables are as they were."""
        if self._held:
            self._held = frozenset()
            self._line.drop()

    def _start(self, staged: Sequence[Committable], deadline: Deadline) -> set[str]:
        """Begin, and lock the staging tables that are there: nobody else moves or drops them now."""
        self._line.begin(deadline, min(self._lock_seconds, max(0.05, deadline.remaining())))
        there = set()
        for name in sorted(map(name_of, staged)):
            self._line.ask(deadline, "SAVEPOINT look")
            try:
                self._line.ask(deadline, f"LOCK TABLE {self._place.own(name)} IN ACCESS EXCLUSIVE MODE")
            except client().psycopg.errors.UndefinedTable:
                self._line.ask(deadline, "ROLLBACK TO SAVEPOINT look")
                continue
            there.add(name)
        return there

    def _move(self, epoch: int, staged: Iterable[Committable], deadline: Deadline, *, decided: bool) -> None:
        # In the order of the writers: where two have the same key, it is always the same one that comes last.
        for one in sorted(staged, key=lambda each: each.writer):
            payload, source = one.payload, self._place.own(name_of(one))
            moved = self._line.count(deadline, statement(payload, source))
            if not payload["key"] and moved != payload["rows"]:
                [(kept,)] = self._line.ask(deadline, f"SELECT count(*) FROM {source}")
                if kept == payload["rows"] and not decided:
                    raise not_all(SYSTEM, str(self._place), kept, moved)
                raise (OutcomeUnknown if decided else PreCommitFailed)(
                    f"Of {kept} rows in the staging table {source}, where its writer had put {payload['rows']}, "
                    f"{moved} would be moved.",
                    safe="nothing of it was moved.",
                    to_do="find out who changed it, or which trigger of the target leaves rows out; keep others away "
                    "from tables penstock_stage_….",
                )
            self._line.ask(
                deadline,
                f"INSERT INTO {self._place.markers} (sink, writer, epoch, generation, at) VALUES ($1, $2, $3, $4, $5)",
                self._prefix,
                name_of(one),
                epoch,
                self._generation,
                payload["at"],
            )
            self._line.ask(deadline, f"DROP TABLE {source}")


def statement(payload: Mapping[str, Any], source: str) -> str:
    """The statement that moves one staging table: a plain insert, or insert-or-update by key."""
    target = ".".join(map(quoted, payload["target"]))
    columns = ", ".join(map(quoted, payload["columns"]))
    key = ", ".join(map(quoted, payload["key"]))
    if not key:
        return f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}"
    # Of several rows with one key the last one written counts; ctid is the order in which a fresh table was filled.
    rows = f"SELECT DISTINCT ON ({key}) {columns} FROM {source} ORDER BY {key}, ctid DESC"
    rest = [quoted(name) for name in payload["columns"] if name not in payload["key"]]
    update = f"UPDATE SET {', '.join(f'{one} = EXCLUDED.{one}' for one in rest)}" if rest else "NOTHING"
    return f"INSERT INTO {target} ({columns}) {rows} ON CONFLICT ({key}) DO {update}"
