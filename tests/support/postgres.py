"""A PostgreSQL table of a test's own, with a sink that writes into it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa

from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import TwoPhaseSink
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.sql.tables import SqlMode
from penstock.testing.sink_contract import SinkHarness
from tests.support.servers.postgres import Postgres

TEXT = ["plain", None, "", "Zażółć gęślą jaźń", "日本語", "🚀 \u2028 line\n\t", 'comma, "quote" \\N \\']


class PostgresHarness(SinkHarness):
    """`columns` are those of the table; what the contract writes needs an id and a name."""

    def __init__(
        self,
        server: Postgres,
        mode: SqlMode,
        columns: str = "id bigint, name text",
        key: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self.server, self.mode, self.key, self.more = server, mode, key, more
        self.table = f"t_{uuid.uuid4().hex[:8]}"
        self.create = f"CREATE TABLE {self.table} ({columns})"
        self.run(self.create)

    def run(self, statement: str) -> list[Any]:
        # Anew each time: some of the tests restart the server.
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def make_sink(self) -> TwoPhaseSink:
        return self.sink()

    def sink(self, **more: Any) -> PostgresSink:
        settings = {"mode": self.mode, "key": self.key, "create": False, **self.more, **more}
        return PostgresSink(self.server.dsn, table=self.table, **settings)

    def read_visible(self) -> list[Any]:
        return self.run(f"SELECT id, name FROM {self.table}")

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        return pa.RecordBatch.from_pydict({"id": list(numbers), "name": [f"row {i}" for i in numbers]})

    def special(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": list(range(len(TEXT))), "name": TEXT})

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [1], "name": ["x" * 500_000]})

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """An administrator ends what looks abandoned."""
        name = committable.payload["writer"]
        self.run(f"ROLLBACK PREPARED '{name}'" if committable.payload["kind"] == "prepared" else f"DROP TABLE {name}")
        return True

    def left(self, job: str) -> list[str]:
        """Prepared transactions of a job."""
        return [row[0] for row in self.run(f"SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, '{job}:')")]

    def staging(self) -> list[str]:
        """All staging tables there are."""
        return [row[0] for row in self.run("SELECT relname FROM pg_class WHERE starts_with(relname, 'penstock_stage')")]
