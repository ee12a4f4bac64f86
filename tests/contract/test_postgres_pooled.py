"""The PostgreSQL sink keeps the contract behind PgBouncer, as far as its way of pooling allows; what it does not allow
has a name before the first row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.contracts.sink import CheckContext
from penstock.errors import ConfigurationError, SystemUnavailable
from penstock.sinks.postgres import PostgresSink
from penstock.testing.sink_contract import VISIBLE, SinkContract
from penstock.testing.sink_harness import SinkSteps
from tests.support.postgres import PostgresHarness
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres import Postgres

CONTEXT = CheckContext("job", 1.0, 30.0)


class PooledHarness(PostgresHarness):
    """Writes through the pooler, and looks past it."""

    def __init__(self, server: Postgres, pooler: PgBouncer, **more: Any) -> None:
        self.pooler = pooler
        super().__init__(server, **more)

    def sink(self, **more: Any) -> PostgresSink:
        settings = {"mode": self.mode, "key": self.key, "create": False, **self.more, **more}
        return PostgresSink(self.pooler.dsn, table=self.table, **settings)


@pytest.fixture(scope="module", params=["transaction", pytest.param("session", marks=pytest.mark.long)])
def pooler(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[PgBouncer]:
    with PgBouncer.start(postgres, request.param) as started:
        yield started


class PooledContract(SinkContract):
    table: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _harness(self, postgres: Postgres, pooler: PgBouncer) -> Iterator[None]:
        self.harness: PooledHarness = PooledHarness(postgres, pooler, **self.table)
        yield
        self.sweep(self.harness.make_sink(), generation=9)
        assert not self.harness.left(self.job)


class TestPooledTwoPhase(PooledContract):
    table = {"mode": "two_phase"}


class TestPooledStaged(PooledContract):
    table = {"mode": "staged"}


class Steps(SinkSteps):
    def __init__(self, harness: PooledHarness) -> None:
        self.harness = harness


def test_a_pooler_that_is_restarted_between_the_steps_is_reached_again(postgres: Postgres) -> None:
    with PgBouncer.start(postgres, "transaction") as pooler:
        harness = PooledHarness(postgres, pooler, mode="two_phase")
        steps, sink, rows = Steps(harness), harness.sink(), harness.rows(5)
        prepared = steps.prepare(sink, [rows])
        pooler.kill()
        pooler.restart()
        assert steps.commit(sink, prepared) <= VISIBLE
        steps.assert_visible(rows)


def test_a_pool_that_is_used_up_is_waited_for_and_not_taken_for_a_changed_table(postgres: Postgres) -> None:
    """Everything that PgBouncer itself complains of has the code 08P01, which PostgreSQL has for malformed rows."""
    with PgBouncer.start(postgres, "transaction", default_pool_size="1", query_wait_timeout="1") as pooler:
        harness = PooledHarness(postgres, pooler, mode="two_phase")
        with psycopg.connect(pooler.dsn) as holder:
            holder.execute("SELECT 1")
            with pytest.raises(SystemUnavailable, match="query_wait_timeout"):
                harness.sink().check(CONTEXT, "sink")
        assert harness.sink().check(CONTEXT, "sink") is not None


def test_statement_pooling_is_refused_before_the_first_row(postgres: Postgres) -> None:
    with PgBouncer.start(postgres, "statement") as pooler:
        harness = PooledHarness(postgres, pooler, mode="two_phase")
        with pytest.raises(ConfigurationError, match="pool_mode=statement"):
            harness.sink().check(CONTEXT, "sink")


def test_a_sweep_through_a_pooler_ends_no_session_of_somebody_else(postgres: Postgres) -> None:
    """A pooler lends the session that a driver had to the next one who asks, and PostgreSQL still calls it ours."""
    with PgBouncer.start(postgres, "transaction", default_pool_size="1") as pooler:
        harness = PooledHarness(postgres, pooler, mode="two_phase")
        steps, sink = Steps(harness), harness.sink()
        steps.commit(sink, steps.prepare(sink, [harness.rows(3)]))
        with psycopg.connect(f"{pooler.dsn}", application_name="") as other:
            other.execute("CREATE TEMP TABLE kept (id int) ON COMMIT DROP")
            direct = PostgresSink(postgres.dsn, table=harness.table, mode="two_phase", create=False)
            steps.sweep(direct, generation=2)
            assert other.execute("SELECT count(*) FROM kept").fetchone() == (0,)
