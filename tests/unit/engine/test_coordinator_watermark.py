"""The coordinator compares its watermark with the one Spark wrote, and decides without one once they differ."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.engine.coordinator import Coordinator
from penstock.events import Events
from tests.support.executed_plan import Mark, Node
from tests.support.memory_storage import MemoryStorage


class Query:
    """A query without sinks, and the checkpoint that Spark would write for it."""

    def __init__(self, policy: str = "min") -> None:
        self.policy = policy
        self.storage = MemoryStorage()
        self.storage.create("metadata", b'{"id":"q"}')
        self.ledger = Ledger(MemoryStorage())
        self.plan: Any = None
        self.coordinator = Coordinator(
            job="job",
            query="copy",
            sinks={},
            sources=["orders"],
            ledger=self.ledger,
            log=SparkLog(self.storage),
            events=Events(),
            body=lambda frame, outputs: None,
            executed_plan=lambda: self.plan,
        )
        self.coordinator.recover()

    def epoch(self, epoch: int, *highest: int, spark_writes: int | None) -> int | None:
        """Run an epoch as Spark does, of streams with these event times; the watermark it was decided with."""
        conf = {"spark.sql.streaming.multipleWatermarkPolicy": self.policy}
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf})
        self.storage.create(f"offsets/{epoch}", f"v1\n{metadata}\n{epoch}".encode())
        self.plan = Node(*map(Mark, highest))
        self.coordinator(MagicMock(), epoch)
        if spark_writes is not None:
            self.storage.create(f"commits/{epoch}", f'v1\n{{"nextBatchWatermarkMs":{spark_writes}}}'.encode())
        [decision] = self.ledger.decisions(epoch, "q")
        return decision.watermark


@pytest.fixture
def query() -> Query:
    return Query()


def test_while_both_agree_every_epoch_is_decided_with_its_watermark(query: Query) -> None:
    assert [query.epoch(n, 100 + n, spark_writes=90 + n) for n in range(4)] == [90, 91, 92, 93]


@pytest.mark.parametrize("written", [89, 91])
def test_once_spark_wrote_another_no_epoch_is_decided_with_one(query: Query, written: int) -> None:
    """So that recovery proves such an epoch by a replay, and never completes Spark's log with a wrong number."""
    assert query.epoch(0, 100, spark_writes=written) == 90
    assert query.epoch(1, 200, spark_writes=190) is None
    assert query.epoch(2, 300, spark_writes=290) is None


@pytest.mark.parametrize(("policy", "expected"), [("min", 10), ("max", 9_000)])
def test_the_first_epoch_of_a_run_is_decided_by_the_policy_that_its_barrier_holds(policy: str, expected: int) -> None:
    """Nothing has been compared yet, and recovery would complete Spark's log with that number."""
    query = Query(policy)
    assert query.epoch(0, 20, 9_010, spark_writes=None) == expected
