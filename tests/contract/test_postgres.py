"""The PostgreSQL sink keeps the contract in every mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.checkpoint.decision import Outcome
from penstock.testing.sink_contract import SinkContract
from tests.support.postgres import PostgresHarness
from tests.support.servers.postgres import Postgres


class PostgresContract(SinkContract):
    table: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _harness(self, postgres: Postgres) -> Iterator[None]:
        self.harness: PostgresHarness = PostgresHarness(postgres, **self.table)
        yield
        self.sweep(self.harness.make_sink(), generation=9)
        assert not self.harness.left(self.job)


class TestTwoPhase(PostgresContract):
    table = {"mode": "two_phase"}


class TestStaged(PostgresContract):
    table = {"mode": "staged"}


class TestUpsert(PostgresContract):
    table = {"mode": "upsert", "columns": "id bigint PRIMARY KEY, name text", "key": ["id"]}

    def test_other_sinks_with_a_similar_name_are_not_touched(self) -> None:
        """As everywhere, but the same rows written twice are still there once."""
        sink, rows = self.harness.make_sink(), self.harness.rows(5)
        for name in (f"{self.uid}-2", f"{self.uid}2"):
            prepared = self.prepare(sink, [rows], uid=name)
            self.sweep(sink, generation=2)
            assert self.commit(sink, prepared, uid=name) == {Outcome.COMMITTED}
        self.assert_visible(rows)


def test_what_we_write_for_the_server_nobody_else_can_replace(postgres: Postgres) -> None:
    """Started by root it runs as another user, who can pass through the folder and write into the data alone."""
    folder = postgres.folder.stat()
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (os.geteuid(), 0o711 if os.geteuid() == 0 else 0o700)
    assert stat.S_IMODE((postgres.folder / "data").stat().st_mode) == 0o700
    assert (postgres.log.stat().st_uid, stat.S_IMODE(postgres.log.stat().st_mode)) == (os.geteuid(), 0o600)
    assert {one.name for one in postgres.folder.iterdir()} == {"data", "server.conf", "server.log"}
