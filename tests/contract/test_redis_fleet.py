"""Redis with a replica, a sentinel and a failover in the middle, and a cluster of three: what is waited for is not
lost, and what is lost is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PreCommitFailed, SystemUnavailable
from penstock.sinks.redis import RedisSink
from penstock.testing.sink_contract import SinkHarness
from penstock.testing.sink_harness import SinkSteps
from tests.support.redis_fleet import NAME, Sentinel, cluster_of_three, connect, holder, wait_whole, watched_pair
from tests.support.waiting import until

CONTEXT = CheckContext("job", interval_seconds=1.0, timeout_seconds=30.0)
SOON = 30.0


class Counters(SinkHarness):
    """Counters, which show every row that is applied twice."""

    def __init__(self, reader: Any, *arguments: Any, **settings: Any) -> None:
        self._read, self._arguments, self._settings = reader, arguments, settings

    def make_sink(self) -> RedisSink:
        return RedisSink(*self._arguments, mode="counter", key="id", prefix="{t}:", **self._settings)

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [f"k{i}" for i in range(start, start + n)], "value": [1] * n})

    def read_visible(self) -> list[Any]:
        client = self._read()
        keys = sorted(key for key in client.scan_iter("{t}:k*", count=1000))
        return [(key.decode().removeprefix("{t}:"), int(client.get(key))) for key in keys]


class Steps(SinkSteps):
    def __init__(self, harness: Counters) -> None:
        self.harness, self.sink = harness, harness.make_sink()

    def epoch(self, number: int) -> pa.RecordBatch:
        rows = self.harness.rows(5, start=number * 10)
        prepared = self.prepare(self.sink, [rows], epoch=number)
        assert self.commit(self.sink, prepared, epoch=number) == {Outcome.COMMITTED}
        return rows

    def missing(self, epoch: int, committables: Any) -> dict[int, str]:
        committer = self.sink.open_committer(SinkScope(self.job, self.uid, 2))
        try:
            return dict(committer.missing(epoch, committables, Deadline(SOON)))
        finally:
            committer.close()


def through(sentinel: Sentinel, reader: Any, **more: Any) -> Steps:
    return Steps(Counters(reader, f"redis://{NAME}/0", sentinels=[sentinel.address], **more))


def test_what_a_replica_was_waited_for_is_there_after_the_failover(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (primary, replica, sentinel):
        steps = through(sentinel, lambda: connect(replica), replicas=1)
        assert not [each for each in steps.sink.check(CONTEXT, "sink") if "replicates" in each.message]
        first, second = steps.epoch(0), steps.harness.rows(5, start=10)
        prepared = steps.prepare(steps.sink, [second], epoch=1)
        primary.kill()
        until(lambda: sentinel.primary() == replica.port, "the sentinel to choose the replica")
        until(lambda: connect(replica).info()["role"] == "master", "the replica to be the primary")
        assert steps.commit(steps.sink, prepared, epoch=1, seconds=3) == {Outcome.UNKNOWN}, "nobody else has it yet"
        steps.assert_visible(first, second)
        with pytest.raises(ConfigurationError, match="waits for 1 replicas"):
            steps.sink.check(CONTEXT, "sink")
        primary.settings["replicaof"] = f"127.0.0.1 {replica.port}"
        primary._prepare()
        primary.restart()
        until(lambda: connect(primary).info()["master_link_status"] == "up", "the former primary to follow")
        assert steps.commit(steps.sink, prepared, epoch=1) == {Outcome.ALREADY_COMMITTED}
        third = steps.epoch(2)
        steps.assert_visible(first, second, third)


def test_an_epoch_that_no_replica_has_is_not_decided(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (primary, replica, sentinel):
        steps = through(sentinel, lambda: connect(replica), replicas=1)
        steps.epoch(0)
        replica.kill()
        scope = steps.scope()
        writer = steps.open_writer(steps.sink, scope, epoch=1)
        writer.write(steps.harness.rows(5, start=10))
        payload = writer.pre_commit()
        committer = steps.sink.open_committer(scope)
        with pytest.raises(SystemUnavailable, match="Fewer than 1 replicas"):
            committer.seal([Committable(steps.uid, 0, 5, 0, payload)], Deadline(2))
        committer.close()
        steps.sweep(steps.sink, generation=1)
        assert connect(primary).exists("{t}:k10") == 0


def test_what_a_replica_did_not_have_is_named(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (primary, replica, sentinel):
        steps = through(sentinel, lambda: connect(replica))
        [warning] = [each for each in steps.sink.check(CONTEXT, "sink") if "replicates" in each.message]
        assert "CommittedRowsLost" in warning.message
        first = steps.epoch(0)
        until(lambda: connect(replica).zcard(f"{{t}}penstock:{steps.scope().prefix}:done") == 1, "it to arrive")
        replica.kill()
        lost = steps.prepare(steps.sink, [steps.harness.rows(5, start=10)], epoch=1)
        running = steps.sink.open_committer(steps.scope())
        assert running.commit(1, lost, Deadline(SOON)) == {0: Outcome.COMMITTED}
        # As an administrator does it who has nothing else left.
        primary.kill()
        del replica.settings["replicaof"]
        replica._prepare()
        replica.restart()
        sentinel.turn_to(replica)
        steps.assert_visible(first)
        with pytest.raises(PreCommitFailed, match="last commit"):
            running.seal([], Deadline(SOON))
        running.close()
        [told] = steps.missing(1, lost).values()
        assert told.startswith("ZADD")


def test_a_cluster_of_three_keeps_the_promise_on_the_node_that_has_the_slot(tmp_path: Path) -> None:
    with cluster_of_three(tmp_path) as nodes:
        node = holder(nodes, "{t}:k1")
        other = next(each for each in nodes if each is not node)
        steps = Steps(Counters(lambda: connect(node), other.url, cluster=True))
        first, second = steps.epoch(0), steps.harness.rows(5, start=10)
        prepared = steps.prepare(steps.sink, [second], epoch=1)
        node.kill()
        assert steps.commit(steps.sink, prepared, epoch=1, seconds=3) == {Outcome.UNKNOWN}
        node.restart()
        wait_whole(nodes)
        assert steps.commit(steps.sink, prepared, epoch=1) == {Outcome.COMMITTED}
        assert not steps.missing(1, prepared)
        steps.assert_visible(first, second)


def test_a_redis_that_comes_back_empty_is_noticed(tmp_path: Path) -> None:
    """Between two epochs, by the run that goes on, and by the next run."""
    with watched_pair(tmp_path) as (primary, _, sentinel):
        steps = through(sentinel, lambda: connect(primary))
        rows = steps.harness.rows(5)
        prepared = steps.prepare(steps.sink, [rows], epoch=0)
        running = steps.sink.open_committer(steps.scope())
        running.commit(0, prepared, Deadline(SOON))
        connect(primary).flushall()
        with pytest.raises(PreCommitFailed, match="last commit"):
            running.seal([], Deadline(SOON))
        running.close()
        [told] = steps.missing(0, prepared).values()
        connect(primary).execute_command(*told.split(" "))
        assert not steps.missing(0, prepared), "a person may say that it is known"
