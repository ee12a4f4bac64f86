"""The Kafka sink on three brokers of which one is killed, or stands still, between any two steps of an epoch.

Without Spark: writer and committer alone, driven as a job drives them. An epoch that fails before its decision is
aborted and written again by a next run; one that is decided is only ever committed. The same with a whole job is in
`tests/faults/test_cluster_of_brokers.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.testing.sink_harness import SinkSteps
from tests.support.brokers import Blow, Roles
from tests.support.kafka import assert_nothing_open, transactions
from tests.support.kafka_harness import KafkaHarness
from tests.support.servers.broker import Broker
from tests.support.servers.kafka_cluster import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.long  # three brokers, and some seconds for each that is lost

log = logging.getLogger(__name__)

PARTS = ("coordinator", "leader", "controller")
STEPS = ("opened", "written", "prepared", "sealed", "decided", "committed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.start(tmp_path_factory.mktemp("three")) as started:
        yield started


class Story(SinkSteps):
    """Epochs of one sink, one after the other, and what must be visible of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.roles = cluster, Roles(cluster)
        self.harness: KafkaHarness = KafkaHarness(cluster.servers, "5min")
        self.sink = self.harness.make_sink()
        self.epoch, self.generation, self.batches = 0, 1, list[pa.RecordBatch]()

    def run(self, hit: str = "", blow: Callable[[], None] = lambda: None) -> None:
        """One epoch; `blow` falls at the step `hit`, the first time it is passed."""
        left = [hit]

        def passed(step: str) -> None:
            if step in left:
                left.remove(step)
                blow()

        self.epoch += 1
        batches = [self.harness.rows(20, start=self.epoch * 100 + 50 * n) for n in range(2)]
        decided = None
        while decided is None:
            try:
                decided = self._prepare(batches, passed)
            except PenstockError as error:
                if not error.retryable:
                    raise
                log.info("epoch %d is written again: %s", self.epoch, error.happened)
                self._sweep()
        passed("decided")

        def done() -> bool:
            found = self.commit(self.sink, decided, epoch=self.epoch, generation=self.generation)
            log.info("epoch %d: %s", self.epoch, found)
            assert Outcome.LOST not in found
            return Outcome.UNKNOWN not in found

        until(done, "the decided epoch to be committed", 180)
        passed("committed")
        self.batches += batches

    def judge(self) -> None:
        self.assert_visible(*self.batches)
        assert_nothing_open(self.cluster.servers, self.job)

    def holder(self, part: str) -> Broker:
        if part == "controller":
            return self.roles.controller()
        if part == "leader" or not transactions(self.cluster.servers, self.job):
            return self.roles.leader(self.harness.topic)
        return self.roles.coordinator(self.job)

    def _prepare(self, batches: list[pa.RecordBatch], passed: Callable[[str], None]) -> list[Committable]:
        scope = self.scope(self.generation)
        writers = [self.open_writer(self.sink, scope, epoch=self.epoch, writer=n) for n in range(len(batches))]
        try:
            passed("opened")
            for writer, batch in zip(writers, batches, strict=True):
                writer.write(batch)
            passed("written")
            found = [
                Committable(scope.uid, n, batch.num_rows, 0, writer.pre_commit())
                for n, (writer, batch) in enumerate(zip(writers, batches, strict=True))
            ]
            passed("prepared")
            sealed = self.seal(self.sink, scope, found)
        except BaseException:
            for writer in writers:
                with suppress(Exception):
                    writer.abort()
            raise
        passed("sealed")
        return sealed

    def _sweep(self) -> None:
        """As a next run does; brokers that are away just then are asked again."""
        self.generation += 1

        def swept() -> bool:
            try:
                self.sweep(self.sink, generation=self.generation)
            except PenstockError as error:
                if not error.retryable:
                    raise
                return False
            return True

        until(swept, "leftovers to be aborted", 180)


@pytest.fixture(scope="module")
def story(cluster: Cluster) -> Story:
    made = Story(cluster)
    made.run()
    return made


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_broker_is_lost_between_any_two_steps(story: Story, kind: str, part: str) -> None:
    for step in STEPS:
        log.info("%s the %s when an epoch is %s", kind, part, step)
        blow = Blow(lambda: story.holder(part), kind)
        story.run(step, blow.begin)
        blow.wait_over()
        story.roles.wait_whole(story.harness.topic)
        story.run()
        story.judge()


def test_a_sweep_does_without_a_broker_that_stays_away(story: Story) -> None:
    """It had coordinated what is to be aborted, and the committer that sweeps has known it well."""
    committer = story.sink.open_committer(story.scope(story.generation + 1))
    committer.abort_dangling([], Deadline(60))
    left = story.prepare(story.sink, [story.harness.rows(5)], epoch=99, generation=story.generation)
    assert left
    away = story.roles.coordinator(story.job)
    away.kill()
    try:
        assert committer.abort_dangling([], Deadline(60)) == 1
        committer.close()
    finally:
        away.restart()
    story.generation += 1
    story.judge()


def test_without_enough_replicas_nothing_is_confirmed_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One controller, so that the cluster itself goes on while two of its three brokers are gone."""
    with Cluster.start(tmp_path_factory.mktemp("one-controller"), controllers=1) as cluster:
        story = Story(cluster)
        story.run()
        lost = cluster.brokers[1:]
        prepared = story.prepare(story.sink, [story.harness.rows(5)], epoch=9, generation=story.generation)
        for broker in lost:
            broker.kill()
        found = story.commit(story.sink, prepared, epoch=9, generation=story.generation, seconds=10)
        assert found == {Outcome.UNKNOWN}, "two replicas must have a commit before it counts"
        cluster.restart(lost)
        until(
            lambda: Outcome.UNKNOWN not in story.commit(story.sink, prepared, epoch=9, generation=story.generation),
            "the commit, now that there are enough replicas",
            180,
        )
        story.batches.append(story.harness.rows(5))
        story.run()
        story.judge()
