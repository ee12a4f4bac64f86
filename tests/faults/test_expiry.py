"""The job is down longer than its transactions live: nothing lost, nothing doubled, or a stop that says why."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock import KafkaSink
from penstock.checkpoint.decision import Outcome
from penstock.checkpoint.open import ledger_at
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.errors import ReplayDiffers
from tests.support.fault_case import Case, running
from tests.support.kafka import assert_nothing_open, create_topic, open_transactions, read_committed, transactions
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.broker import Broker

#: Long enough for the first epoch of a cold process on a busy machine, short enough to wait for.
SHORT: dict[str, Any] = {"transaction_timeout": "10s", "timeout": "9s"}


def kill_at(world: Case, point: str) -> None:
    """One run over 100 rows, killed at `point` of its first epoch."""
    world.source.feed(100)
    run = world.start({point: "crash"})
    assert run.wait() == -signal.SIGKILL, run.tail()
    assert world.acted(point)


@dataclass(frozen=True)
class Down:
    """Three jobs that were killed one after the other: while one is killed, the transactions of another expire."""

    whole: Case  # at its decision
    half: Case  # after the first of two commits
    together: Case  # at its decision, with two topics under it, both written by one task for all partitions
    differing: Case  # after the first of two commits, with a plan that gives other rows each time
    states: Mapping[int, str]  # of each decided writer of `differing`, right after its end


@pytest.fixture(scope="module")
def down(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Down]:
    with ExitStack() as worlds:

        def kill_one(point: str, **config: Any) -> Case:
            made = Case(broker.servers, tmp_path_factory.mktemp("case"), **SHORT, **config)
            kill_at(worlds.enter_context(closing(made)), point)
            return made

        whole, half = kill_one("epoch.decided"), kill_one("commit.first")
        together = kill_one("epoch.decided", also_to=create_topic(broker.servers, 2, prefix="also"))
        commit_one(together, "also")
        differing = kill_one("commit.first", random=True)
        yield Down(whole, half, together, differing, decided_states(differing))


def commit_one(world: Case, uid: str) -> None:
    """As the driver would have, had it lived a moment longer: of the first epoch, what sink `uid` has prepared."""
    ledger = ledger_at(f"{world.config.storage}/{world.config.name}/copy/ledger", None, retained=1)
    [manifest] = ledger.manifests(0)
    mine = [committable for committable in manifest.decision.committables if committable.sink == uid]
    sink = KafkaSink(str(world.config.also_to), servers=world.servers)
    committer = sink.open_committer(SinkScope(world.config.name, uid, manifest.decision.id.generation))
    assert set(committer.commit(0, mine, Deadline(30)).values()) == {Outcome.COMMITTED}
    committer.close()


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
    run = world.finish_here(session)
    # The first: with transactions this short, an epoch on a busy machine may expire once more.
    return next(event for event in run.events if event["event"] == "recovered")


def test_all_expired_is_void_and_replayed(down: Down, session: SparkSession) -> None:
    world = down.whole
    assert len(world.manifests()) == 1
    wait_expired(world)
    assert set(decided_states(world).values()) == {"CompleteAbort"}
    assert world.copy.read() == []
    assert finish(world, session)["action"] == "void"


def test_some_expired_are_repaired_with_proof(down: Down, session: SparkSession) -> None:
    world = down.half
    wait_expired(world)
    assert sorted(decided_states(world).values()) == ["CompleteAbort", "CompleteCommit"]
    assert 0 < len(world.copy.read()) < 100
    assert finish(world, session)["action"] == "repair"
    decided, *repaired = world.manifests()
    assert repaired
    assert all(one["epoch"] == 0 and one["generation"] > decided["generation"] for one in repaired)
    assert all(proofs(one) == proofs(decided) for one in repaired)
    assert sum(rows for _, _, rows, _ in proofs(decided)) == 100


def test_one_task_for_all_partitions_is_repaired_with_proof(down: Down, session: SparkSession) -> None:
    """`coalesce(1)` groups all source partitions alike in every attempt, in whatever order they are numbered."""
    world = down.together
    [decided] = world.manifests()
    assert sorted((sink, writer) for sink, writer, *_ in decided["committables"]) == [("also", 0), ("copy", 0)]
    assert world.config.also_to is not None
    wait_expired(world)
    assert world.copy.read() == []
    assert len(read_committed(world.servers, world.config.also_to)) == 100
    assert finish(world, session)["action"] == "repair"
    _, *repaired = world.manifests()
    assert repaired
    assert all(proofs(one) == proofs(decided) for one in repaired)
    assert len(read_committed(world.servers, world.config.also_to)) == 100


def test_a_plan_that_gives_other_rows_stops(down: Down, session: SparkSession) -> None:
    """Half of the epoch is visible and the replay cannot prove the other half: the job stops and says where, however
    often it is started."""
    world = down.differing
    assert sorted(down.states.values()) == ["CompleteCommit", "Ongoing"]
    [lost] = [writer for writer, state in down.states.items() if state == "Ongoing"]
    wait_expired(world)
    before = contents(world)
    assert 0 < len(before) < 100
    for _ in range(2):
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
