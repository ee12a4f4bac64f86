"""The driver's side of a Kafka sink's lanes: marks topics, opening lanes, following their marks.

`LaneWriter.java` is a task's side. This one carries out `contracts/lanes.py`. A lane's producer is used for one
transaction only: a request that the broker answers late finds the next owner's epoch, and ends nothing.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.contracts import lanes as contract
from penstock.contracts.lanes import Action, Lane, LaneClient, Mark, Owner, parse_record
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PenstockError
from penstock.kafka import errors, settings
from penstock.kafka.connections import describe_topics, librdkafka_admin, until_known
from penstock.kafka.tokens import for_confluent
from penstock.sinks.kafka.sink import KafkaSink
from penstock.spark.session import ensure_login

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PATIENCE = 90.0  # for one lane, or for all topics
_LOOK = 10.0  # for all marks
_SLICE = 2.0  # of a wait that is repeated
_AT_ONCE = 8
_BACK = 200  # records behind the end, where the newest mark is looked for first
_LONGEST = 249  # of a topic's name
_TIMEOUT = 30.0  # of a transaction; one is open for milliseconds
#: A mark is a hundred bytes, and only the newest counts: segments that are small enough to be compacted.
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(50 << 20)}
_JAVA = {
    "linger.ms": "5", "batch.size": str(256 << 10), "retry.backoff.ms": "5", "buffer.memory": str(128 << 20),
    "max.request.size": settings.DEFAULTS["message.max.bytes"],
}  # fmt: skip
_BYTES = "org.apache.kafka.common.serialization.ByteArray"


class KafkaLanes(LaneClient):
    """The lanes of one run. `prefix` begins their transactional ids, `<prefix>:lane:<topic>:<partition>`."""

    def __init__(self, sink: KafkaSink, scope: SinkScope, prefix: str, query: str) -> None:
        self._servers, self._options, self._topic, self._prefix = sink.servers, sink.options, sink.topic, prefix
        self._owner = Owner(query, scope.generation)
        self._marks = f"penstock.{scope.job}.{scope.uid}.marks."
        self._connection = settings.for_librdkafka(self._servers, self._options)
        self._begun: dict[Lane, Mark] = {}
        self._newest: dict[Lane, Mark] = {}
        self._ends: dict[Lane, int] = {}  # how far the marks are read
        self._tail: Any = None
        self._looker: Any = None

    def prepare(self, partitions: Mapping[str, int]) -> Mapping[str, str]:
        from confluent_kafka.admin import NewPartitions, NewTopic

        wanted = {self._marks + topic: (topic, count) for topic, count in partitions.items()}
        if (longest := max(wanted, key=len, default="")) and len(longest) > _LONGEST:
            raise ConfigurationError(
                f"The marks topic {longest!r} would have a name of {len(longest)} letters, and Kafka takes {_LONGEST}.",
                to_do="give the job or the query a shorter name, or leave latency out.",
            )
        deadline = Deadline(_PATIENCE)
        while True:
            there = self._describe(wanted)
            small = [name for name, (_, count) in wanted.items() if len(_led(there.get(name))) < count]
            if not small:
                break
            if deadline.passed():
                raise errors.unreachable(self._servers, f"topic {small[0]!r} has no leaders", _PATIENCE)
            shape = self._shape() if any(name not in there for name in small) else {}
            for name in small:
                _, count = wanted[name]
                if name not in there:
                    self._change(name, "creation", self._admin.create_topics([NewTopic(name, count, **shape)]), 36)
                elif len(there[name].partitions) < count:
                    self._change(name, "growth", self._admin.create_partitions([NewPartitions(name, count)]), 37)
        for name, policy in self._configs(wanted, "cleanup.policy").items():
            if policy != "compact":
                raise ConfigurationError(
                    f"The topic {name!r} is not Penstock's: its cleanup.policy is {policy!r}, and that of a marks topic"
                    " is compact. Kafka would delete marks.",
                    to_do="rename that topic, or the job; or set cleanup.policy=compact, if nothing was deleted yet.",
                )
        return {topic: str(there[name].topic_id) for name, (topic, _) in wanted.items()}

    def open(self, lane: Lane, begin: Callable[[Mark | None], Mark]) -> Mark:
        return self.open_all([lane], lambda _, found: begin(found))[lane]

    def open_all(self, lanes: Collection[Lane], begin: Callable[[Lane, Mark | None], Mark]) -> Mapping[Lane, Mark]:
        def one(lane: Lane) -> tuple[Mark, int]:
            with contextlib.closing(_Opening(self, lane, lambda found: begin(lane, found))) as steps:
                return steps.run(self._owner), steps.end

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-lanes") as pool:
            opened = dict(zip(lanes, pool.map(one, lanes), strict=True))
        marks = {lane: mark for lane, (mark, _) in opened.items()}
        self._begun |= marks
        self._newest |= marks
        self._ends |= {lane: end for lane, (_, end) in opened.items()}
        self._forget_tail()
        return marks

    def marks(self) -> Mapping[Lane, Mark]:
        from confluent_kafka import KafkaException

        lanes = {(self._marks + lane.topic, lane.partition): lane for lane in self._ends}
        deadline = Deadline(_LOOK)
        try:
            goals = self._committed_ends(deadline)
            if self._tail is None and goals:
                self._tail = self.consumer()
                self._tail.assign([self.place(lane, end) for lane, end in self._ends.items()])
            while any(self._ends[lane] < goal for lane, goal in goals.items()):
                for message in self._tail.consume(1000, _SLICE / 10):
                    if (read := self.reached(message)) is not None:
                        lane = lanes[message.topic(), message.partition()]
                        self._ends[lane] = max(self._ends[lane], read)
                        if message.error() is None and isinstance(mark := parse_record(message.value()), Mark):
                            self._newest[lane] = mark
                if deadline.passed():
                    raise errors.unreachable(self._servers, "the marks could not be read", _LOOK)
        except KafkaException as error:
            self._forget_tail()
            raise self.refused(error, "reading marks", _LOOK) from error
        return dict(self._newest)

    def _committed_ends(self, deadline: Deadline) -> dict[Lane, int]:
        """How far the marks of each lane can be read now."""
        from confluent_kafka import IsolationLevel, KafkaException
        from confluent_kafka.admin import OffsetSpec

        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = {self.place(lane): lane for lane in self._ends}
        while places:
            try:
                asked = self._admin.list_offsets(
                    dict.fromkeys(places, latest), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_SLICE
                )
                return {places[place]: int(future.result().offset) for place, future in asked.items()}
            except KafkaException as error:
                if error.args[0].code() in errors.DENIED or deadline.passed():
                    raise
                self._looker = None  # which goes on asking with the leader's old epoch
        return {}

    def writer(self, spark: SparkSession, columns: Sequence[str], *, multiplies: bool, latency_ms: int) -> Any:
        from py4j.java_gateway import JavaPackage

        assert spark._jvm is not None
        made = spark._jvm.penstock.sinks.kafka.LaneWriter
        if isinstance(made, JavaPackage):
            raise ConfigurationError(
                "Spark's session has no class penstock.sinks.kafka.LaneWriter.",
                to_do="let the job make the session, or add the jars that KafkaSink.lane_jars() names to spark.jars.",
            )
        producer, consumer = self._java_settings()
        ensure_login(spark, producer.get(settings.LOGIN_HANDLER, ""))
        begun = {str(lane): f"{mark.offset} {mark.part}" for lane, mark in self._begun.items()}
        owner, names = self._owner, (self._topic, self._marks, self._prefix)
        return made(
            producer, consumer, begun, *names, owner.query, owner.generation, list(columns), multiplies, latency_ms
        )

    def close(self) -> None:
        self._forget_tail()
        self._looker = None

    # For the steps of an opening.

    def place(self, lane: Lane, offset: int = -1) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._marks + lane.topic, lane.partition, offset)

    def producer(self, lane: Lane) -> Any:
        from confluent_kafka import Producer

        ours = {
            "transactional.id": f"{self._prefix}:lane:{lane.topic}:{lane.partition}",
            "delivery.report.only.error": False,
            "linger.ms": "0",
        }
        known = for_confluent(settings.for_producer(self._servers, self._options, _TIMEOUT))
        return Producer({"log_level": "2", **known, **ours})

    def consumer(self) -> Any:
        from confluent_kafka import Consumer

        ours: dict[str, Any] = {
            "group.id": f"penstock-{uuid.uuid4()}", "isolation.level": "read_committed", "enable.partition.eof": True,
            "enable.auto.commit": False, "auto.offset.reset": "error", "fetch.wait.max.ms": 100, "log_level": "2",
        }  # fmt: skip
        return Consumer({**for_confluent(self._connection), **ours})

    def reached(self, message: Any) -> int | None:
        """The offset to which a reader has come with this message; None for an error that passes."""
        fault = message.error()
        if fault is None:
            return int(message.offset()) + 1
        if fault.code() == fault._PARTITION_EOF:
            return int(message.offset())
        if fault.code() in errors.DENIED and fault.code() != fault.GROUP_AUTHORIZATION_FAILED:  # nothing joins a group
            raise errors.denied(errors.DENIED[fault.code()], fault.str())
        return None

    def refused(self, error: Any, doing: str, seconds: float = 0.0) -> PenstockError:
        fault = error.args[0]
        return errors.from_code(fault.code(), fault.str(), servers=self._servers, doing=doing, seconds=seconds)

    # Topics and settings.

    @property
    def _admin(self) -> Any:
        if self._looker is None:
            self._looker = librdkafka_admin(self._connection)
        return self._looker

    def _describe(self, names: Collection[str]) -> dict[str, Any]:
        from confluent_kafka import KafkaException

        try:
            return describe_topics(self._admin, names, _PATIENCE)
        except KafkaException as error:
            raise self.refused(error, f"looking up topics {', '.join(names)}", _PATIENCE) from error

    def _configs(self, names: Collection[str], key: str) -> dict[str, str]:
        """A setting of each topic whose settings this user may read."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        found = {}
        asked = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
        for resource, future in asked.items():
            with contextlib.suppress(KafkaException):
                found[resource.name] = str(future.result()[key].value)
        return found

    def _shape(self) -> dict[str, Any]:
        """Replication and settings of a marks topic: as safe as the rows."""
        if (topic := self._topic) is None:
            return {"replication_factor": -1, "config": _COMPACTED}
        target = until_known([topic], lambda: self._describe([topic])).get(topic)
        if target is None:
            raise errors.missing(topic)
        in_sync = self._configs([topic], "min.insync.replicas")
        replicas = min(len(partition.replicas) for partition in target.partitions)
        more = {"min.insync.replicas": in_sync[topic]} if in_sync else {}
        return {"replication_factor": replicas, "config": {**_COMPACTED, **more}}

    def _change(self, name: str, what: str, asked: Mapping[str, Any], done: int) -> None:
        """`done`: the code by which a broker says that another client did it first."""
        from confluent_kafka import KafkaException

        try:
            asked[name].result()
        except KafkaException as error:
            fault = error.args[0]
            if fault.code() in errors.DENIED:
                raise errors.denied(f"the {what} of topic {name!r}", fault.str()) from error
            if fault.code() != done:
                raise self.refused(error, f"the {what} of topic {name!r}", _PATIENCE) from error

    def _java_settings(self) -> tuple[dict[str, str], dict[str, str]]:
        given = dict(self._options)
        if "message.max.bytes" in given:
            given["max.request.size"] = given.pop("message.max.bytes")
        owned = {
            "bootstrap.servers": self._servers, "enable.idempotence": "true", "acks": "all",
            "transaction.timeout.ms": str(int(_TIMEOUT * 1000)),
            "max.block.ms": str(int(_SLICE * 1000)),  # a client that was fenced may wait this long before it says so
            "key.serializer": f"{_BYTES}Serializer", "value.serializer": f"{_BYTES}Serializer",
        }  # fmt: skip
        reading = {
            "isolation.level": "read_committed", "auto.offset.reset": "none", "enable.auto.commit": "false",
            "fetch.max.wait.ms": "100", "key.deserializer": f"{_BYTES}Deserializer",
            "value.deserializer": f"{_BYTES}Deserializer",
        }  # fmt: skip
        connection = {**self._connection, "client.id": given.get("client.id", "")}
        return {**_JAVA, **settings.for_java(given), **owned}, {**settings.for_java(connection), **reading}

    def _forget_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


class _Opening:
    def __init__(self, lanes: KafkaLanes, lane: Lane, begin: Callable[[Mark | None], Mark]) -> None:
        self._lanes, self._lane, self._begin = lanes, lane, begin
        self._key = str(lane).encode()
        self._deadline = Deadline(_PATIENCE)
        self._producer: Any = None
        self._consumer: Any = None
        self._open = False
        self.end = 0

    def close(self) -> None:
        if self._open:  # readers would wait for it until it expires
            with contextlib.suppress(Exception):
                self._producer.abort_transaction(_SLICE)
        if self._consumer is not None:
            self._consumer.close()

    def run(self, owner: Owner) -> Mark:
        from confluent_kafka import KafkaException

        steps = contract.open_by_driver(owner)
        answer: Any = None
        try:
            while True:
                answer = self._do(steps.send(answer))
        except StopIteration as done:
            mark: Mark = done.value
            return mark
        except KafkaException as error:
            raise self._lanes.refused(error, f"opening the lane of {self._lane}", _PATIENCE) from error

    def _do(self, action: Action) -> Any:
        match action:
            case contract.Init():
                self._producer, self._open = self._lanes.producer(self._lane), False
                self._patiently(self._producer.init_transactions)
            case contract.SendOpening(record):
                self._producer.begin_transaction()
                self._open = True
                self.end = self._send(record.to_bytes())
                return self.end
            case contract.ReadMark(end):
                return self._read(end)
            case contract.Begin(found):
                try:
                    return self._begin(found)
                except PenstockError as error:
                    return error
            case contract.SendMark(mark):
                self._send(mark.to_bytes())
            case contract.Commit():
                return self._commit()
            case contract.Abort():
                self._patiently(self._producer.abort_transaction)
                self._open = False
        return None

    def _patiently(self, work: Callable[[float], None]) -> None:
        """Until it is done; the same call may be made again after a timeout."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return work(_SLICE)
            except KafkaException as error:
                if not error.args[0].retriable() or self._deadline.passed():
                    raise

    def _commit(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            self._patiently(self._producer.commit_transaction)
        except KafkaException:
            if self._deadline.passed():
                raise
            return False  # no answer, or fenced: opening the lane anew shows which
        self._open = False
        return True

    def _send(self, value: bytes) -> int:
        from confluent_kafka import KafkaException

        sent: list[tuple[Any, int]] = []
        place = self._lanes.place(self._lane)
        self._producer.produce(
            place.topic, value, self._key, place.partition, lambda error, row: sent.append((error, row.offset()))
        )
        while not sent:
            self._producer.poll(_SLICE)  # a delivery fails by itself when its time is over
        [(error, offset)] = sent
        if error is not None:
            raise KafkaException(error)
        return offset

    def _read(self, end: int) -> Mark | None:
        """The newest committed mark before `end`, to which a reader of committed records comes exactly."""
        if self._consumer is None:
            self._consumer = self._lanes.consumer()
        low, _ = self._consumer.get_watermark_offsets(self._lanes.place(self._lane), self._deadline.remaining())
        found: Mark | None = None
        start, step = end, _BACK
        while found is None and start > low:
            start, step = max(low, end - step), step * 10
            self._consumer.assign([self._lanes.place(self._lane, start)])
            at = start
            while at < end:
                for message in self._consumer.consume(1000, _SLICE / 10):
                    if (read := self._lanes.reached(message)) is None:
                        continue
                    at = max(at, read)
                    fresh = message.error() is None and message.offset() < end
                    if fresh and isinstance(record := parse_record(message.value()), Mark):
                        found = record
                if self._deadline.passed():
                    raise errors.unreachable(self._lanes._servers, "the marks could not be read", _PATIENCE)
        return found


def _led(topic: Any) -> list[Any]:
    """The partitions that have a leader."""
    return [] if topic is None else [one for one in topic.partitions if one.leader is not None and one.leader.id >= 0]
