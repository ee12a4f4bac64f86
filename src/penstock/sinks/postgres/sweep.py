"""Finding what writers of this and of older runs left behind, and ending it, so that none of them can do any more."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.contracts.sink import Leftover
from penstock.errors import SystemUnavailable
from penstock.sinks.postgres.faults import OBJECT_IN_USE, UNDEFINED_OBJECT, state_of
from penstock.sinks.postgres.server import client
from penstock.sinks.sql.names import (
    digest,
    generation_in,
    label,
    literal,
    numbers_in,
    staging_generation,
    staging_prefix,
)

if TYPE_CHECKING:
    from penstock.contracts.sink import SinkScope
    from penstock.deadline import Deadline
    from penstock.sinks.postgres.catalog import Place
    from penstock.sinks.postgres.line import Line

_POLL = 0.02
_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND CASE WHEN application_name ~ ('^penstock ' || $1 || ' g[0-9]+ ' || $2 || '$')
      THEN ltrim(split_part(application_name, ' ', 3), 'g')::bigint <= $3 ELSE false END
"""


class Sweep:
    """One sink's leftovers. Raises psycopg's errors."""

    def __init__(self, line: Line, place: Place, scope: SinkScope) -> None:
        self._line, self._place, self._scope = line, place, scope

    def fence(self, deadline: Deadline) -> int | None:
        """How often this sink was swept; None if never."""
        found = self._line.ask(deadline, f"SELECT fence FROM {self._place.sinks} WHERE sink = $1", self._scope.prefix)
        return int(found[0][0]) if found else None

    def all(self, keep: Collection[str], deadline: Deadline) -> int:
        """Raise the fence, end sessions that can still prepare, then undo whatever is prepared but `keep`."""
        self._raise_fence(deadline)
        self.end_older_drivers(deadline)
        ended = self._end("writer", self._scope.generation, deadline)
        gids = [name for name in self.gids(deadline) if self._mine(generation_in(name, self._scope.prefix))]
        tables = [name for name in self._tables(deadline) if self._mine(staging_generation(name, self._scope.prefix))]
        return (
            ended
            + self.roll_back([name for name in gids if name not in keep], deadline)
            + self.drop([name for name in tables if name not in keep], deadline)
        )

    def gids(self, deadline: Deadline) -> list[str]:
        """Prepared transactions of this sink, of any generation."""
        found = self._line.ask(
            deadline,
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)",
            f"{label(self._scope.prefix)}:g",
        )
        return [str(row[0]) for row in found]

    def leftovers(self, deadline: Deadline) -> list[Leftover]:
        """Prepared transactions and staging tables of this and older generations, left as they are."""
        rows = self._line.ask(
            deadline,
            "SELECT gid, extract(epoch FROM prepared)::float8 FROM pg_prepared_xacts "
            "WHERE database = current_database() AND starts_with(gid, $1) ORDER BY gid",
            f"{label(self._scope.prefix)}:g",
        )
        found = [
            Leftover(
                str(gid),
                numbers["generation"],
                numbers["epoch"],
                numbers["partition"],
                float(at),
                {"kind": "prepared", "writer": str(gid)},
            )
            for gid, at in rows
            if (numbers := numbers_in(str(gid), self._scope.prefix)) and self._mine(numbers["generation"])
        ]
        for name in sorted(self._tables(deadline)):
            generation = staging_generation(name, self._scope.prefix)
            if generation is not None and self._mine(generation):
                found.append(Leftover(name, generation, payload={"kind": "staged", "writer": name}))
        return found

    def roll_back(self, gids: Iterable[str], deadline: Deadline) -> int:
        return sum(self._roll_back(gid, deadline) for gid in gids)

    def drop(self, tables: Sequence[str], deadline: Deadline) -> int:
        """Drop staging tables; not waiting for ever for whoever holds one."""
        if not tables:
            return 0
        self._line.begin(deadline, max(0.05, deadline.remaining() / 2))
        try:
            for name in sorted(tables):
                self._line.ask(deadline, f"DROP TABLE IF EXISTS {self._place.own(name)}")
            self._line.ask(deadline, "COMMIT")
        except BaseException:
            self._line.drop()
            raise
        return len(tables)

    def end_older_drivers(self, deadline: Deadline) -> int:
        """A driver that was replaced may hold locks; what it has decided is in the ledger, and committed by us."""
        return self._end("driver", self._scope.generation - 1, deadline)

    def _mine(self, generation: int | None) -> bool:
        return generation is not None and generation <= self._scope.generation

    def _raise_fence(self, deadline: Deadline) -> None:
        sinks = self._place.sinks
        self._line.ask(
            deadline,
            f"UPDATE {sinks} SET fence = fence + 1, generation = $2 WHERE sink = $1 AND generation <= $2",
            self._scope.prefix,
            self._scope.generation,
        )

    def _end(self, role: str, generation: int, deadline: Deadline) -> int:
        """Terminate sessions and wait until they are gone: one that was just preparing may still come through."""
        first: int | None = None
        while True:
            [(left,)] = self._line.ask(deadline, _END, digest(self._scope.prefix), role, generation)
            first = left if first is None else first
            if not left:
                return first
            if deadline.passed():
                raise SystemUnavailable(
                    f"{left} sessions of earlier writers for {self._place} did not end in time.",
                    safe="what they wrote is not visible, and will not be.",
                    to_do="nothing: the next start of the job ends them.",
                )
            time.sleep(_POLL)

    def _roll_back(self, gid: str, deadline: Deadline) -> int:
        while True:
            try:
                self._line.ask(deadline, f"ROLLBACK PREPARED {literal(gid)}")
            except client().psycopg.Error as error:
                if state_of(error) == UNDEFINED_OBJECT:
                    return 0
                if state_of(error) != OBJECT_IN_USE or deadline.passed():
                    raise
                time.sleep(_POLL)
            else:
                return 1

    def _tables(self, deadline: Deadline) -> list[str]:
        found = self._line.ask(
            deadline,
            "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relkind = 'r' AND starts_with(c.relname, $2)",
            self._place.own_schema,
            staging_prefix(self._scope.prefix),
        )
        return [str(row[0]) for row in found]
