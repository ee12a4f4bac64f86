"""`penstock.exactly_once` in queries that know nothing else of Penstock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import KafkaSink
from penstock.errors import ConfigurationError, TopicMissing
from tests.support.run_job import CrashAt, Kafka, Numbers, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

ROWS = 500
ALL = Counter(str(number) for number in range(ROWS))


class Query:
    """An ordinary query of 100 rows an epoch; `stateful` makes it a count of each number, which is 1."""

    def __init__(self, session: SparkSession, kafka: Kafka, folder: Path, stateful: bool) -> None:
        self._session, self._kafka, self.stateful = session, kafka, stateful
        self.location = str(folder / "checkpoint")
        self.topic = kafka.topic()
        self.sink = KafkaSink(self.topic, servers=kafka.servers)

    def start(self, function: Any) -> StreamingQuery:
        rows = Numbers(ROWS, {"id": "id"}).load(self._session, "in")
        if self.stateful:
            rows = rows.groupBy("id").count().where("count = 1").drop("count")
        frame = rows.selectExpr("cast(id AS string) AS value")
        mode = "update" if self.stateful else "append"
        return (
            frame.writeStream.foreachBatch(function)
            .outputMode(mode)
            .option("checkpointLocation", self.location)
            .start()
        )

    def run(self, function: Any) -> None:
        """Until all rows are through; then it is stopped wherever it happens to be in one of the empty epochs after."""
        query = self.start(function)
        until(lambda: len(self.commits()) >= ROWS // 100 or not query.isActive, "all epochs")
        assert query.isActive, query.exception()
        query.stop()

    def fail(self, function: Any) -> str:
        query = self.start(function)
        until(lambda: not query.isActive, "the query to fail")
        return str(query.exception())

    def commits(self) -> list[int]:
        return sorted(int(path.name) for path in (Path(self.location) / "commits").glob("[0-9]*"))

    def seen(self) -> Counter[str]:
        return self._kafka.values(self.topic)


@pytest.fixture(params=[False, True], ids=["stateless", "stateful"])
def query(session: SparkSession, kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest) -> Query:
    return Query(session, kafka, tmp_path, request.param)


@pytest.fixture
def stateless(session: SparkSession, kafka: Kafka, tmp_path: Path) -> Query:
    return Query(session, kafka, tmp_path, stateful=False)


def test_with_the_location_it_recovers_before_the_query_starts(query: Query, crash_at: CrashAt) -> None:
    crash_at("epoch.decided", 3)
    assert "epoch.decided" in query.fail(penstock.exactly_once(query.sink, uid="out", checkpoint=query.location))
    crash_at.no_more()
    assert query.commits() == [0, 1]
    assert query.seen().total() == 200

    again = penstock.exactly_once(query.sink, uid="out", checkpoint=f"file://{query.location}")
    assert query.commits() == [0, 1, 2], "recovery has completed Spark's log"
    assert query.seen().total() == 300
    query.run(again)
    assert query.seen() == ALL


def test_without_the_location_it_recovers_at_the_first_batch(query: Query, crash_at: CrashAt) -> None:
    crash_at("epoch.decided", 3)
    query.fail(penstock.exactly_once(query.sink, uid="out"))
    crash_at.no_more()
    again = penstock.exactly_once(query.sink, uid="out")
    assert query.seen().total() == 200
    query.run(again)
    assert query.seen() == ALL
    assert (Path(query.location) / "_penstock" / "epochs").is_dir()


def test_the_same_function_in_a_query_started_again(query: Query, crash_at: CrashAt) -> None:
    told = query.location if query.stateful else None  # one way each is enough
    function = penstock.exactly_once(query.sink, uid="out", checkpoint=told)
    for point in ("epoch.sealed", "epoch.decided", "epoch.committed"):
        crash_at(point, 2)
        assert point in query.fail(function)
        crash_at.no_more()
    query.run(function)
    assert query.seen() == ALL


def test_another_location_than_the_querys(stateless: Query, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    said = stateless.fail(penstock.exactly_once(stateless.sink, uid="out", checkpoint=elsewhere))
    assert elsewhere in said
    assert stateless.location in said
    assert "give both the same location" in said
    assert not stateless.seen()
    stateless.run(penstock.exactly_once(stateless.sink, uid="out", checkpoint=stateless.location))
    assert stateless.seen() == ALL


def test_what_cannot_work_is_said_before_the_query_starts(session: SparkSession, kafka: Kafka) -> None:
    with pytest.raises(TopicMissing):
        penstock.exactly_once(KafkaSink("no-such-topic", servers=kafka.servers), uid="out")
    with pytest.raises(ConfigurationError, match="cannot be a uid"):
        penstock.exactly_once(KafkaSink("no-such-topic", servers=kafka.servers), uid="a/b")
