"""A query with `penstock.exactly_once` has what a job has: it is in `penstock list`, serves metrics and its page, shows
lag tools its positions, and is ended by a command."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import confluent_kafka
import pytest

import penstock
from penstock import KafkaSink
from penstock.cli.jobs import find_running
from penstock.errors import SavepointError
from penstock.ops.process.registry import Entry, Registry, State
from tests.support.command import run_command
from tests.support.run_job import Kafka, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


class Shop:
    """A plain query of Spark's from topic to topic, under a job's name of its own."""

    def __init__(self, session: SparkSession, kafka: Kafka, folder: Path) -> None:
        self.session, self.kafka, self.name = session, kafka, f"shop-{uuid.uuid4().hex[:8]}"
        self.queries: list[StreamingQuery] = []
        self.orders, self.alerts, self.checkpoint = kafka.topic(), kafka.topic(), str(folder / "checkpoint")

    def send(self, rows: int) -> None:
        self.kafka.send(self.orders, [(None, str(number)) for number in range(rows)], spread=2)

    def start(self) -> StreamingQuery:
        sink = KafkaSink(self.alerts, servers=self.kafka.servers)
        function = penstock.exactly_once(sink, uid="alerts", job=self.name, checkpoint=self.checkpoint)
        read = self.session.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka.servers)
        rows = read.option("subscribe", self.orders).option("startingOffsets", "earliest").load()
        writer = rows.select("key", "value").writeStream.foreachBatch(function)
        query = writer.option("checkpointLocation", self.checkpoint).start()
        self.queries.append(query)
        return query

    def close(self) -> None:
        for query in self.queries:
            query.stop()
        until(lambda: (entry := self.entry()) is None or entry.state.ended, "operations to end")

    def entry(self) -> Entry | None:
        return next((entry for entry in Registry().entries() if entry.name == self.name), None)

    def read(self, path: str) -> str:
        entry = self.entry()
        assert entry is not None
        asked = Request(f"http://{entry.address}{path}", headers={"Authorization": f"Bearer {entry.token}"})
        with urlopen(asked, timeout=30) as answer:
            return str(answer.read().decode())

    def positions(self, group: str) -> dict[int, int]:
        """What a lag tool sees of the group."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.servers, "group.id": group})
        try:
            asked = [confluent_kafka.TopicPartition(self.orders, number) for number in (0, 1)]
            return {one.partition: one.offset for one in consumer.committed(asked, timeout=10) if one.offset >= 0}
        except confluent_kafka.KafkaException:
            return {}
        finally:
            consumer.close()


@pytest.fixture
def shop(session: SparkSession, kafka: Kafka, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(session, kafka, tmp_path)
    yield made
    made.close()


def test_it_has_what_a_job_has(shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    shop.send(100)
    query = shop.start()
    until(lambda: (entry := shop.entry()) is not None and entry.address, "the query to be in the registry")
    shop.send(100)
    until(lambda: len(shop.kafka.read(shop.alerts)) == 200, "all rows")

    status, listed, _ = run_command(monkeypatch, capfd, "list", "--json")
    assert status == 0
    [mine] = [row for row in json.loads(listed) if row["name"] == shop.name]
    assert mine["state"] == "RUNNING"

    def rows() -> float:  # of the epochs since it is served, which no epoch waits for
        found = re.search(r'^penstock_rows_total{[^}]*query="alerts"[^}]*} (\S+)', shop.read("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    until(lambda: rows() >= 100, "the rows in /metrics")
    until(lambda: "penstock_source_lag_rows{" in shop.read("/metrics"), "the lag")
    until(lambda: shop.positions(f"penstock-{shop.name}-alerts") == {0: 100, 1: 100}, "the group's positions")
    assert "<!doctype html>" in shop.read("/").lower()
    entry = shop.entry()
    assert entry is not None
    [about] = json.loads(shop.read(f"/penstock/v1/runs/{entry.id}"))["queries"]
    assert shop.orders in about["sources"][0]["describe"]
    assert about["guarantee"] == "at-least-once", "Spark's reader also reads what was aborted"

    client = find_running(shop.name, None).client
    with pytest.raises(SavepointError, match="has no savepoints"):
        client.perform(f"/jobs/{entry.id}/savepoints", {}, f"/jobs/{entry.id}/savepoints")
    assert query.isActive
    client.ask("PATCH", f"/jobs/{entry.id}")  # as `penstock cancel`
    until(lambda: not query.isActive, "the query to end")
    until(lambda: (ended := shop.entry()) is not None and ended.state is State.CANCELED, "its state", 60)
    assert query.exception() is None
