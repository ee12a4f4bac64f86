"""The job is down longer than its transactions live: nothing lost, nothing doubled, or a stop that says why."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ReplayDiffers
from tests.support.case import Case, running
from tests.support.kafka import assert_nothing_open, open_transactions, read_committed, transactions
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Long enough for the first epoch of a cold process on a busy machine, short enough to wait for.
SHORT = {"transaction_timeout": "10s", "timeout": "9s"}


def kill_at(world: Case, point: str) -> None:
    """One run over 100 rows, killed at `point` of its first epoch."""
    world.source.feed(100)
    run = world.start({point: "crash"})
    assert run.wait() == -signal.SIGKILL, run.tail()
    assert world.acted(point)


def wait_expired(world: Case) -> None:
    until(lambda: not open_transactions(world.servers, world.config.name), "the broker to end all transactions", 30)


def proofs(manifest: dict[str, Any]) -> set[tuple[str, int, int, int]]:
    """Sink, writer, row count and checksum of each writer."""
    return {(sink, writer, rows, checksum) for sink, writer, rows, checksum, *_ in manifest["committables"]}


def decided_states(world: Case) -> dict[int, str]:
    """What the broker says of each decided writer. On a busy machine there are others: an attempt before the decision
    that took longer than transactions this short live."""
    states = transactions(world.servers, world.config.name)
    [manifest] = world.manifests()
    return {writer: states[payload["transactional_id"]] for _, writer, _, _, _, payload in manifest["committables"]}


def finish(world: Case, session: SparkSession) -> Mapping[str, Any]:
    """Run the job again until all is visible, judge, and tell what its recovery did."""
    with running(world.build(session)) as run:
        world.wait_visible(run)
        run.stop()
    world.assert_exact()
    # The first: with transactions this short, an epoch on a busy machine may expire once more.
    return next(event for event in run.events if event["event"] == "recovered")


def test_all_expired_is_void_and_replayed(case: Callable[..., Case], session: SparkSession) -> None:
    world = case(**SHORT)
    kill_at(world, "epoch.decided")
    assert len(world.manifests()) == 1
    wait_expired(world)
    assert set(decided_states(world).values()) == {"CompleteAbort"}
    assert world.copy.read() == []
    assert finish(world, session)["action"] == "void"


def test_some_expired_are_repaired_with_proof(case: Callable[..., Case], session: SparkSession) -> None:
    world = case(**SHORT)
    kill_at(world, "commit.first")
    wait_expired(world)
    assert sorted(decided_states(world).values()) == ["CompleteAbort", "CompleteCommit"]
    assert 0 < len(world.copy.read()) < 100
    assert finish(world, session)["action"] == "repair"
    decided, *repaired = world.manifests()
    assert repaired
    assert all(one["epoch"] == 0 and one["generation"] > decided["generation"] for one in repaired)
    assert all(proofs(one) == proofs(decided) for one in repaired)
    assert sum(rows for _, _, rows, _ in proofs(decided)) == 100


def test_a_plan_that_gives_other_rows_stops(case: Callable[..., Case], session: SparkSession) -> None:
    """Half of the epoch is visible and the replay cannot prove the other half: the job stops and says where, however
    often it is started."""
    world = case(**SHORT, random=True)
    kill_at(world, "commit.first")
    states = decided_states(world)
    assert sorted(states.values()) == ["CompleteCommit", "Ongoing"]
    [lost] = [writer for writer, state in states.items() if state == "Ongoing"]
    wait_expired(world)
    before = contents(world)
    assert 0 < len(before) < 100
    for _ in range(3):
        with running(world.build(session)) as run, pytest.raises(ReplayDiffers) as stopped:
            run.join()
        said = str(stopped.value)
        assert said.startswith("Epoch 0 of query 'copy' is decided and partly visible")
        assert f"the writers copy/{lost} were lost" in said
        assert {event["action"] for event in run.events if event["event"] == "recovered"} == {"repair"}
        assert contents(world) == before
        assert_nothing_open(world.servers, world.config.name)
        assert world.commits() == set()
        assert len(world.manifests()) == 1


def contents(world: Case) -> list[tuple[int, int, bytes]]:
    """Every visible message with its place: doubled, moved or changed, it would show."""
    assert world.config.copy_to is not None
    return [(one.partition(), one.offset(), one.value()) for one in read_committed(world.servers, world.config.copy_to)]
