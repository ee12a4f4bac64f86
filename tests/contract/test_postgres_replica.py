"""A standby takes the place of the primary in the middle of an epoch. With synchronous replication nothing is missed;
without it, what the standby did not have is named, and nothing is written on top of the gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed
from penstock.failpoints import hooked
from penstock.sinks.postgres import PostgresSink
from penstock.testing.sink_harness import SinkSteps
from tests.support.postgres import PostgresHarness
from tests.support.servers.replica import Pair, pair

SOON = 30.0


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as made:
        yield made


class Steps(SinkSteps):
    """Epochs against whichever server takes writes."""

    harness: PostgresHarness

    def __init__(self, servers: Pair, mode: Any) -> None:
        self.harness = PostgresHarness(servers, mode)  # type: ignore[arg-type]
        self.sink: PostgresSink = self.harness.sink()

    def missing(self, epoch: int, committables: list[Committable], generation: int = 2) -> dict[int, str]:
        committer = self.sink.open_committer(SinkScope(self.job, self.uid, generation))
        try:
            return dict(committer.missing(epoch, committables, Deadline(SOON)))
        finally:
            committer.close()


@pytest.mark.parametrize("mode", ["two_phase", pytest.param("staged", marks=pytest.mark.long)])
def test_a_synchronous_standby_has_what_was_prepared_and_what_was_committed(servers: Pair, mode: str) -> None:
    steps = Steps(servers, mode)
    servers.wait_for_standby()
    [found] = steps.harness.sink(options="-c synchronous_commit=off").check(CheckContext("job", 1.0, 30.0), "uid")
    assert "without waiting for the synchronous standby" in found.message
    first, second = steps.harness.rows(5), steps.harness.rows(5, start=5)
    committed = steps.prepare(steps.sink, [first], epoch=1)
    assert steps.commit(steps.sink, committed, epoch=1) == {Outcome.COMMITTED}
    prepared = steps.prepare(steps.sink, [second], epoch=2)
    servers.fail_over()
    assert not steps.missing(1, committed)
    assert steps.commit(steps.sink, prepared, epoch=2) == {Outcome.COMMITTED}
    assert steps.commit(steps.sink, prepared, epoch=2) == {Outcome.ALREADY_COMMITTED}
    steps.assert_visible(first, second)
    third = steps.harness.rows(5, start=10)
    assert steps.commit(steps.sink, steps.prepare(steps.sink, [third], epoch=3), epoch=3) == {Outcome.COMMITTED}
    steps.assert_visible(first, second, third)


def _leave_behind(servers: Pair) -> None:
    """The standby gets what was written until now, and nothing more."""
    with psycopg.connect(servers.primary.dsn, autocommit=True) as connection:
        [(end,)] = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    with psycopg.connect(servers.standby.dsn, autocommit=True) as connection:
        while connection.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", [end]).fetchone() == (True,):
            pass
    servers.standby.stop_following()


def test_what_an_asynchronous_standby_does_not_have_is_named(servers: Pair) -> None:
    steps = Steps(servers, "two_phase")
    first, second, third = (steps.harness.rows(5, start=start) for start in (0, 5, 20))
    kept = steps.prepare(steps.sink, [first], epoch=1)
    steps.commit(steps.sink, kept, epoch=1)
    half = steps.prepare(steps.sink, [second, third], epoch=2)
    committing = steps.sink.open_committer(SinkScope(steps.job, steps.uid, 1))
    with hooked("commit.first", lambda: _leave_behind(servers)):
        assert set(committing.commit(2, half, Deadline(SOON)).values()) == {Outcome.COMMITTED}
    # The standby has the second epoch prepared, and the first commit of two. It misses all of the third and fourth.
    lost = steps.prepare(steps.sink, [steps.harness.rows(5, start=10)], epoch=3)
    running = steps.sink.open_committer(SinkScope(steps.job, steps.uid, 1))
    running.seal(lost, Deadline(SOON))
    running.commit(3, lost, Deadline(SOON))
    undecided = steps.prepare(steps.sink, [steps.harness.rows(5, start=15)], epoch=4)
    servers.fail_over()

    assert not steps.missing(1, kept), "it was there before"
    steps.assert_visible(first, second)
    committing.seal([], Deadline(SOON))
    steps.assert_visible(first, second, third)
    steps.harness.run(f"DELETE FROM penstock_markers WHERE writer = '{half[1].payload['writer']}'")
    committing.close()
    assert list(steps.missing(2, half)) == [1], "each writer is asked for"
    with pytest.raises(PreCommitFailed, match="committed last"):
        running.seal(undecided, Deadline(SOON))
    running.close()
    [told] = steps.missing(3, lost).values()
    assert told.startswith("INSERT INTO")
    assert steps.missing(3, lost), "asking changes nothing"
    steps.harness.run(told)
    assert not steps.missing(3, lost), "and a person may say that it is known"
    again = steps.prepare(steps.sink, [steps.harness.rows(5, start=15)], epoch=4, generation=3)
    assert steps.commit(steps.sink, again, epoch=4, generation=3) == {Outcome.COMMITTED}
    steps.assert_visible(first, second, third, steps.harness.rows(5, start=15))
