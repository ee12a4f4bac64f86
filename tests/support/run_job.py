"""Running jobs from a test: in a thread, watched by their events; topics filled and read; checkpoints looked into."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import Job, Source, failpoints
from penstock.checkpoint.layout import unseal
from tests.support import waiting
from tests.support.kafka import create_topic
from tests.support.own_time import OwnTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = 90.0  # for anything that only waits for this machine, which may be busy

Event = Mapping[str, Any]
Row = tuple[bytes | None, bytes | None]


def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = PATIENCE) -> Any:
    """What `condition` gives as soon as that is something; fails with `what` when it never is."""
    return waiting.until(condition, what, seconds)


class Watched:
    """A job that runs in a thread of its own. Leaving the block stops it cleanly and raises what it failed with."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._there = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="watched-job", daemon=True)

    def _run(self) -> None:
        try:
            self.job.run(on_event=self._hear)
        except BaseException as error:
            self.error = error
        finally:
            with self._there:
                self._there.notify_all()

    def _hear(self, event: Event) -> None:
        with self._there:
            self.events.append(event)
            self._there.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is None and self.error is not None:
            raise self.error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it cleanly; raises what it failed of."""
        self.job.stop()
        self.join()

    def join(self) -> None:
        """Until it ends; raises what it failed of."""
        self._thread.join(PATIENCE)
        assert not self.alive, "the job does not end"
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """End it cleanly, if it was started; what it failed of is in `error`."""
        if self._thread.ident is not None:
            self.job.stop()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the job did not stop"

    def wait(self, true: Callable[[], Any], what: str = "the job") -> None:
        """Until `true`, asked after every event; what the job fails with meanwhile is raised."""
        own = OwnTime()
        with self._there:
            while not true():
                if not self._thread.is_alive():
                    raise self.error or AssertionError(f"the job ended without {what}: {self.told}")
                self._there.wait(0.2)
                assert own() < PATIENCE, f"waited {PATIENCE:g} s for {what}: {self.told}"

    def wait_for(self, event: str, times: int = 1, **fields: Any) -> Event:
        self.wait(lambda: len(self.all(event, **fields)) >= times, f"{times} × {event}")
        return self.all(event, **fields)[times - 1]

    def all(self, event: str, **fields: Any) -> list[Event]:
        return [
            one
            for one in list(self.events)
            if one["event"] == event and all(one.get(key) == value for key, value in fields.items())
        ]

    def committed(self, epochs: int) -> None:
        """Until so many epochs are committed."""
        self.wait(lambda: len(self.all("committed")) >= epochs, f"{epochs} commits")

    @property
    def told(self) -> list[str]:
        return [f"{one['event']} {one.get('epoch', '')} {one.get('error', '')}".strip() for one in self.events[-12:]]


def run_all(job: Job) -> list[Event]:
    """A bounded job, from start to end, in this thread; its events."""
    events: list[Event] = []
    job.run(on_event=events.append)
    return events


def failing(job: Job, kind: type[BaseException]) -> BaseException:
    """What the job fails with, which must be of that kind."""
    try:
        job.run()
    except kind as error:
        return error
    raise AssertionError(f"the job ended without {kind.__name__}")


class Kafka:
    """Topics of one broker, as other programs see them."""

    def __init__(self, servers: str, options: Mapping[str, str] | None = None) -> None:
        self.servers = servers
        self._client: dict[str, Any] = {"bootstrap.servers": servers, **(options or {})}

    def topic(self, partitions: int = 2, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
        return create_topic(self.servers, partitions, name=name, config=config, client=self._client)

    def create_again(self, topic: str, partitions: int = 1) -> None:
        """Delete the topic, and create another one of its name."""
        admin = AdminClient(self._client)
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        until(lambda: topic not in admin.list_topics(timeout=10).topics, f"{topic} to be gone")
        self.topic(partitions, name=topic)

    def send(self, topic: str, rows: Iterable[tuple[Any, Any]], *, spread: int | None = None) -> None:
        """Keys and values; row n into partition n modulo `spread`, or where its key belongs."""
        producer = Producer({**self._client, "message.max.bytes": 20_000_000, "linger.ms": 5})
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        for number, (key, value) in enumerate(rows):
            where: dict[str, Any] = {} if spread is None else {"partition": number % spread}
            producer.produce(topic, value, key, on_delivery=delivered, **where)
            producer.poll(0)
        assert producer.flush(30) == 0
        assert not failed, failed

    def read(self, topic: str) -> list[Row]:
        """Keys and values that a read_committed consumer sees now, partition by partition, in order."""
        return [row for _, rows in sorted(self.partitions(topic).items()) for row in rows]

    def partitions(self, topic: str) -> dict[int, list[Row]]:
        """The same, for each partition."""
        consumer = Consumer(
            {
                **self._client,
                "group.id": f"reader-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 20_000_000,
            }
        )
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            rows: dict[int, list[Row]] = {number: [] for number in partitions}
            open_ends, own = set(partitions), OwnTime()
            while open_ends:
                assert own() < PATIENCE, f"{topic} could not be read to its end"
                for message in consumer.consume(1000, 0.5 if not any(rows.values()) else 0.1):
                    number = message.partition()
                    assert number is not None
                    if (error := message.error()) is None:
                        rows[number].append((message.key(), message.value()))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_ends.discard(number)
                    else:
                        raise AssertionError(message.error())
            return rows
        finally:
            consumer.close()

    def values(self, topic: str) -> Counter[str]:
        return Counter(value.decode() if value is not None else "∅" for _, value in self.read(topic))

    def read_until(self, topic: str, rows: int) -> None:
        """Until so many rows are visible."""
        until(lambda: len(self.read(topic)) >= rows, f"{rows} rows in {topic}")

    def ends(self, topic: str) -> dict[int, int]:
        consumer = Consumer({**self._client, "group.id": "ends"})
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in partitions
            }
        finally:
            consumer.close()


class Checkpoint:
    """One query's folder: Spark's log and the ledger, read without the product's own reading of Spark's log."""

    def __init__(self, storage: str, job: str, query: str) -> None:
        self.folder = Path(storage) / job / query

    @property
    def epochs(self) -> list[int]:
        """Epochs with a commit of Spark's."""
        names = (path.name for path in (self.folder / "spark" / "commits").glob("[0-9]*"))
        return sorted(int(name) for name in names if name.isdigit())

    def watermark(self, epoch: int) -> int:
        text = (self.folder / "spark" / "commits" / str(epoch)).read_text()
        return int(json.loads(text.splitlines()[1])["nextBatchWatermarkMs"])

    @property
    def watermarks(self) -> dict[int, int]:
        return {epoch: self.watermark(epoch) for epoch in self.epochs}

    def barrier(self, epoch: int) -> Sequence[str]:
        """The source positions of an epoch, as Spark wrote them."""
        return (self.folder / "spark" / "offsets" / str(epoch)).read_text().splitlines()[2:]

    def manifest(self, path: Path) -> dict[str, Any]:
        return unseal("manifest", path.read_bytes(), str(path))

    @property
    def manifests(self) -> dict[int, dict[str, Any]]:
        """The newest decision of each epoch."""
        paths = sorted((self.folder / "ledger" / "epochs").glob("*.json"))
        return {body["epoch"]: body for body in map(self.manifest, paths)}

    @property
    def decided_watermarks(self) -> dict[int, int | None]:
        return {epoch: body["watermark"] for epoch, body in self.manifests.items()}

    @property
    def outputs(self) -> dict[int, list[tuple[str, int, int, int]]]:
        """Of each epoch, what every writer with rows wrote: sink, writer, rows, checksum."""
        return {
            epoch: sorted(tuple(one[:4]) for one in body["committables"] if one[2])
            for epoch, body in self.manifests.items()
        }


class Numbers(Source):
    """Rows numbered from 0, made by Spark itself: a source such as users write. `columns` are expressions over `id`."""

    def __init__(self, rows: int, columns: Mapping[str, str], *, per_epoch: int = 100) -> None:
        self._rows, self._columns, self._per_epoch = rows, columns, per_epoch

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        options = {"rowsPerBatch": self._per_epoch, "numPartitions": 2, "startTimestamp": 0}
        endless = spark.readStream.format("rate-micro-batch").options(**options).load()
        rows = endless.selectExpr("value AS id").where(f"id < {self._rows}")
        return rows.selectExpr(*(f"{expression} AS {name}" for name, expression in self._columns.items()))

    @property
    def bounded(self) -> bool:
        return True

    def finished(self, offset: Any) -> bool:
        return int(offset["offset"]) >= self._rows


class CrashAt:
    """Makes a failpoint of this process raise at its N-th passing, counted from now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, point: str, passing: int = 1) -> None:
        self._patch.setenv(failpoints.VARIABLE, f"{point}=raise@{passing}")
        failpoints.reload()

    def no_more(self) -> None:
        self._patch.delenv(failpoints.VARIABLE)
        failpoints.reload()
