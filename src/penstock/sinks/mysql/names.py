"""Who a sink is in the database, and the names of what its writers leave there.

A sink is its job, its uid and its table. The table is part of it because one server may hold the same job twice: a
fork that writes into tables of its own, a copy for testing. XA ids are known to the whole server, so the database is
part of theirs.

    XA id     penstock-<digest of sink and database>,  g<generation>-e<epoch>-a<attempt>-p<partition>-<random>
    staging   penstock_stage_<digest of sink>_g<generation>_<random>

The second half of an XA id, or the name of the staging table, is the writer's name: in its committable and its marker.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.sinks.sql import names

#: What tells our XA ids from those of other programs at a glance; any number will do.
FORMAT = 20563
_BRANCH = re.compile(r"g(?P<generation>\d+)-e(?P<epoch>\d+)-a\d+-p(?P<partition>\d+)-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Names:
    """Of one sink in one database."""

    prefix: str
    database: str
    table: str
    generation: int

    @classmethod
    def of(cls, scope: SinkScope, database: str, table: str) -> Names:
        return cls(scope.prefix, database, table, scope.generation)

    @property
    def target(self) -> list[str]:
        """Database and table, as a committable carries them."""
        return [self.database, self.table]

    @property
    def identity(self) -> str:
        return f"{self.prefix}@{self.table}"

    @property
    def sink(self) -> str:
        """In the marker tables; at most 100 characters."""
        return names.label(self.identity)

    @property
    def global_id(self) -> str:
        """The first half of every XA id of this sink."""
        return f"penstock-{names.digest(f'{self.database}/{self.identity}', 32)}"

    def branch(self, scope: WriterScope) -> str:
        """A second half, never given twice; at most 64 bytes for all numbers that can come up."""
        return f"g{scope.sink.generation}-e{scope.epoch}-a{scope.attempt}-p{scope.partition}-{secrets.token_hex(8)}"

    def xid(self, branch: str) -> str:
        """As it stands in a statement."""
        return f"'{self.global_id}','{branch}',{FORMAT}"

    def staging(self) -> str:
        return f"{self.staging_prefix}{self.generation}_{secrets.token_hex(6)}"

    @property
    def staging_prefix(self) -> str:
        return names.staging_prefix(self.identity)

    def generation_in(self, writer: str) -> int | None:
        """The generation in a writer's name, of either sort; None if it is not one of this sink."""
        found = self.numbers_in(writer)
        return found["generation"] if found else None

    def numbers_in(self, writer: str) -> dict[str, int] | None:
        """Generation and, of an XA branch, epoch and partition in a writer's name; None if it is not of this sink."""
        match = _BRANCH.fullmatch(writer)
        if match is not None:
            return {key: int(value) for key, value in match.groupdict().items()}
        generation = names.staging_generation(writer, self.identity)
        return None if generation is None else {"generation": generation}

    def is_branch(self, writer: str) -> bool:
        return _BRANCH.fullmatch(writer) is not None

    def quoted(self, table: str) -> str:
        return f"{names.quoted(self.database, '`')}.{names.quoted(table, '`')}"
