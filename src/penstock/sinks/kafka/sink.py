"""`KafkaSink`: rows into Kafka topics, one transaction per task, visible all at once; and the checks before a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.contracts.lanes import RealTimeSink
from penstock.contracts.sink import CheckContext, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, SchemaMismatch, TimeoutsContradict
from penstock.kafka import errors, settings
from penstock.kafka.connections import Connections, kafka_python, reach
from penstock.secrets import mask_setting
from penstock.spark.registry import Format, WireColumn, wire_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from penstock.sinks.kafka.committer import KafkaCommitter
    from penstock.sinks.kafka.lanes import KafkaLanes
    from penstock.sinks.kafka.writer import KafkaWriter
    from penstock.storage.storage import Storage

#: In the order in which the writer takes them: Spark's Kafka sink's columns, and `timestamp`.
ACCEPTED = {
    "value": "string or binary",
    "key": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}
_TYPES = {
    "value": ("string", "binary"), "key": ("string", "binary"), "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
    "timestamp": ("timestamp", "timestamp_ntz"),
}  # fmt: skip
_CAST = {"value": "binary", "key": "binary", "partition": "int"}
_CREATE_SECONDS = 30.0


@dataclass(frozen=True, repr=False)
class KafkaSink(TwoPhaseSink, RealTimeSink):
    """Exactly once into Kafka, for readers with `isolation.level=read_committed`.

    Takes the columns of Spark's own Kafka sink, `value` (string or binary) and optionally `key`, `topic`, `partition`,
    `headers`, and also `timestamp`. `topic` here wins over the column.

    `options` are client settings (SASL, TLS, compression, …) in librdkafka's names, or in Spark's with `kafka.` in
    front. Their secrets never appear in a message, a log or the ledger.

    The broker aborts a transaction that is not committed within `transaction_timeout`; a job that is down longer
    between decision and commit repairs it from a replay. The default is the brokers' default maximum.

    `create_topic` creates a missing `topic` when the job starts, with `partitions` and `replication` or the broker's
    defaults. Without it a missing topic is an error.

    `key` and `value` are formats of a schema registry: `Avro`, `Protobuf` or `JsonSchema`. A frame without a column
    `value` is then written as a struct of all columns that have no other meaning here.
    """

    shapes_once: ClassVar[bool] = True
    _columns: ClassVar[Sequence[WireColumn]] = ()  # an instance has its own

    topic: str | None = None
    servers: str = field(kw_only=True)
    transactional_id_prefix: str | None = field(default=None, kw_only=True)
    transaction_timeout: str | float = field(default="15min", kw_only=True)
    create_topic: bool = field(default=False, kw_only=True)
    partitions: int | None = field(default=None, kw_only=True)
    replication: int | None = field(default=None, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    key: Format | None = field(default=None, kw_only=True)
    value: Format | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", settings.normalise(self.options))
        if self.create_topic and self.topic is None:
            raise ConfigurationError(
                "create_topic needs the topic's name, and this sink takes it from the column 'topic'.",
                to_do="write KafkaSink('topic', create_topic=True, …), or create the topics beforehand.",
            )
        settings.transaction_seconds(self.transaction_timeout)
        object.__setattr__(self, "_columns", wire_columns(self.topic, self.key, self.value))

    def __repr__(self) -> str:
        shown = {name: mask_setting(name, value) for name, value in sorted(self.options.items())}
        return f"KafkaSink({self.topic!r}, servers={self.servers!r}, options={shown})"

    def describe(self) -> str:
        return f"Kafka topic {self.topic or '(column topic)'} at {self.servers}"

    def shape(self, frame: DataFrame) -> DataFrame:
        """The accepted columns in fixed order and type, others dropped as Spark does; strings as UTF-8 bytes."""
        from pyspark.sql import functions as f

        if self.value is not None and "value" not in frame.columns:
            frame = frame.withColumn("value", f.struct(*(name for name in frame.columns if name not in ACCEPTED)))
        for wire in self._columns:
            frame = wire.write(frame)
        columns = []
        for name, chosen in self._accepted(frame.schema).items():
            column = f.col(f"`{chosen.name}`")
            if name == "headers":
                column = f.transform(
                    column, lambda h: f.struct(h["key"].alias("key"), h["value"].cast("binary").alias("value"))
                )
            columns.append(column.cast(_CAST[name]).alias(name) if name in _CAST else column.alias(name))
        return frame.select(*columns)

    def resolve(self, kept: Storage | None, after: BaseException | None) -> None:
        for column in self._columns:
            column.resolve(kept, after)

    def fit(self, schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        names = {name: chosen.name for name, chosen in self._accepted(schema).items()}

        def select(batch: pa.RecordBatch) -> pa.RecordBatch:
            import pyarrow as pa

            headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            kinds = {"value": pa.binary(), "key": pa.binary(), "partition": pa.int32(), "headers": headers}
            columns = {name: batch.column(batch.schema.get_field_index(given)) for name, given in names.items()}
            return pa.RecordBatch.from_pydict(
                {name: column.cast(kinds.get(name, column.type)) for name, column in columns.items()}
            )

        return select

    def _accepted(self, schema: StructType) -> dict[str, StructField]:
        types = {field.name.lower(): field for field in schema.fields}
        if "value" not in types:
            raise _mismatch("value", "missing", list(types))
        if self.topic is None and "topic" not in types:
            raise SchemaMismatch(
                "The Kafka sink has no topic: neither KafkaSink(topic) nor a column 'topic' names one.",
                to_do="write KafkaSink('topic', …), or add a column 'topic' of type string.",
            )
        accepted = {}
        for name in ACCEPTED:
            if name not in types or (name == "topic" and self.topic is not None):
                continue
            kind = types[name].dataType.simpleString()
            base = "string" if kind.startswith(("string", "varchar", "char")) else kind
            if base.lower() not in _TYPES[name]:
                raise _mismatch(name, kind, list(types))
            accepted[name] = types[name]
        return accepted

    def redirected(self, suffix: str) -> KafkaSink:
        if self.topic is None:
            raise ConfigurationError(
                "A KafkaSink that takes its topic from the rows cannot redirect its output.",
                to_do="for a fork, name the topic: KafkaSink('topic', …).",
            )
        # The fork's topic is new; the broker's defaults shape it.
        return replace(self, topic=f"{self.topic}{suffix}", create_topic=True)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        timeout = settings.transaction_seconds(self.transaction_timeout)
        check_epoch_fits(context, timeout)
        exists = reach(self.servers, self._producer_settings(), self.topic)
        if not exists and not self.create_topic:
            raise errors.missing(str(self.topic))
        with closing(self._connections()) as connections:
            limits = read_limits(connections, self.topic if exists else None)
        check_broker_limit(timeout, limits.max_transaction_timeout)
        batch = int(self.options.get("batch.size", 1_000_000))
        return [Finding(uid, text) for text in limit_warnings(self.topic or "", limits, batch)]

    def open_writer(self, scope: WriterScope) -> KafkaWriter:
        from penstock.sinks.kafka.pool import Key
        from penstock.sinks.kafka.writer import KafkaWriter

        producer_settings = tuple(sorted(self._producer_settings().items()))
        return KafkaWriter(scope, Key(self._prefix(scope.sink), scope.sink.generation, producer_settings), self.topic)

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.kafka.pool import Key
        from penstock.sinks.kafka.writer import DirectKafkaWriter

        return DirectKafkaWriter(scope, Key("", 0, tuple(sorted(self._producer_settings().items()))), self.topic)

    def open_committer(self, scope: SinkScope) -> KafkaCommitter:
        from penstock.sinks.kafka.committer import KafkaCommitter
        from penstock.sinks.kafka.transactions import TransactionClient

        self._create_missing_topic()
        timeout = settings.transaction_seconds(self.transaction_timeout)
        connections = self._connections()
        client = TransactionClient(connections, transaction_timeout=timeout)
        committer = KafkaCommitter(client, self._prefix(scope), scope.generation)
        committer.rules = cache(partial(topic_rules, connections, self.topic))  # type: ignore[method-assign]
        return committer

    def open_lanes(self, scope: SinkScope, query: str) -> KafkaLanes:
        from penstock.sinks.kafka.lanes import KafkaLanes

        self._create_missing_topic()
        return KafkaLanes(self, scope, self._prefix(scope), query)

    def lane_jars(self) -> Sequence[Path]:
        from penstock.supply.jars import compiled
        from penstock.supply.versions import KAFKA_JARS

        return [compiled("penstock.sinks.kafka", "LaneWriter", [KAFKA_JARS])]

    def _create_missing_topic(self) -> None:
        if self.create_topic and self.topic is not None:
            with closing(self._connections()) as connections:
                create_topic(connections, self.topic, self.partitions, self.replication)

    def _prefix(self, scope: SinkScope) -> str:
        """The beginning of this sink's transactional ids, which no other sink's ids share.

        The length tells where the user's part ends: `team` before job `a-b` is not `team-a` before job `b`; otherwise
        they would sweep each other's transactions. It comes last, so that access rules for the prefix apply.
        """
        user_prefix = self.transactional_id_prefix
        return f"{user_prefix}-{scope.prefix}:{len(user_prefix)}" if user_prefix else scope.prefix

    def _producer_settings(self) -> dict[str, str]:
        return settings.for_producer(self.servers, self.options, settings.transaction_seconds(self.transaction_timeout))

    def _connections(self) -> Connections:
        return Connections(self.servers, self.options)


def _mismatch(name: str, kind: str, columns: list[str]) -> SchemaMismatch:
    return SchemaMismatch(
        f"The Kafka sink cannot take column {name!r}: it is {kind}, accepted is {ACCEPTED[name]}"
        f" (columns given: {', '.join(columns) or 'none'}).",
        to_do='for example df.selectExpr("to_json(struct(*)) AS value"), or cast the column.',
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """The cluster's limits; None for those that it does not report (a right may be missing)."""

    max_transaction_timeout: float | None = None
    replicas: int | None = None
    min_in_sync: int | None = None
    max_message_bytes: int | None = None


def check_epoch_fits(context: CheckContext, transaction_timeout: float) -> None:
    """An epoch must fit into a transaction, which is open from the first row to the commit."""
    needed = context.interval_seconds + context.timeout_seconds
    if transaction_timeout <= needed:
        raise TimeoutsContradict(
            f"transaction_timeout is {transaction_timeout:g} s, but an epoch may take {needed:g} s: the interval of "
            f"{context.interval_seconds:g} s and the checkpoint timeout of {context.timeout_seconds:g} s.",
            to_do="raise transaction_timeout above that sum, or lower the checkpoint timeout.",
        )


def read_limits(connections: Connections, topic: str | None) -> Limits:
    """The limits that this user may read; the broker enforces the others anyway."""
    deadline = Deadline(10.0)
    broker = connections.ask(lambda admin: _config(admin, "BROKER", None, "transaction.max.timeout.ms"), deadline)
    most = broker.get("transaction.max.timeout.ms")
    if topic is None:
        return Limits(most / 1000 if most else None)
    keys = "min.insync.replicas", "max.message.bytes"
    config = connections.ask(lambda admin: _config(admin, "TOPIC", topic, *keys), deadline)
    replicas = connections.ask(lambda admin: _replicas(admin, topic), deadline)
    return Limits(most / 1000 if most else None, replicas, *(config.get(key) for key in keys))


def topic_rules(connections: Connections, topic: str | None) -> dict[str, Any]:
    """What a topic takes, as far as this user may read it: rows with a key only, and batches of so many bytes."""
    resource = kafka_python().ConfigResource("TOPIC", topic or "", ["cleanup.policy", "max.message.bytes"])
    try:
        answer = connections.ask(lambda admin: admin.describe_configs([resource], config_filter="all"), Deadline(10.0))
        known = next(iter(next(iter(answer.values())).values()))
        compacted = "compact" in known["cleanup.policy"]["value"]
        return {"rules": {"keyed": compacted, "most": int(known["max.message.bytes"]["value"])}}
    except (kafka_python().errors.KafkaError, KeyError):  # also where the rows name their topics
        return {}


def check_broker_limit(transaction_timeout: float, most: float | None) -> None:
    if most is not None and transaction_timeout > most:
        raise TimeoutsContradict(
            f"transaction_timeout is {transaction_timeout:g} s, but the brokers allow {most:g} s at most "
            f"(transaction.max.timeout.ms={most * 1000:.0f}).",
            to_do=f"set transaction_timeout='{most:g}s' or less, or raise transaction.max.timeout.ms on the brokers.",
        )


def limit_warnings(topic: str, limits: Limits, batch_bytes: int) -> list[str]:
    """Limits under which the job runs but may lose or refuse rows later."""
    texts = []
    if limits.replicas == 1:
        texts.append(f"topic {topic!r} has replication factor 1: rows are lost with its one broker's disk")
    elif limits.min_in_sync == 1 and limits.replicas is not None:
        texts.append(
            f"topic {topic!r} has {limits.replicas} replicas but min.insync.replicas=1: rows confirmed by a single "
            "broker can be lost with it; 2 is usual"
        )
    most = limits.max_message_bytes
    if most is not None and most < batch_bytes:
        texts.append(
            f"topic {topic!r} takes {most:,} bytes a batch, the sink sends up to {batch_bytes:,}: "
            f"set the option batch.size to {most} or less"
        )
    return texts


def _config(admin: Any, kind: str, name: str | None, *keys: str) -> dict[str, int]:
    if name is None:
        name = str(next(iter(admin._manager.cluster.brokers())).node_id)
    try:
        answer = admin.describe_configs([kafka_python().ConfigResource(kind, name, list(keys))], config_filter="all")
    except kafka_python().errors.KafkaError:
        return {}
    values = next(iter(next(iter(answer.values())).values()))
    return {key: int(values[key]["value"]) for key in keys if key in values}


def _replicas(admin: Any, topic: str) -> int | None:
    try:
        parts = admin.describe_topics([topic])[0]["partitions"]
    except kafka_python().errors.KafkaError:
        return None
    return min((len(part["replica_nodes"]) for part in parts), default=None)


def create_topic(connections: Connections, topic: str, partitions: int | None, replication: int | None) -> bool:
    """Create `topic` unless it exists; whether it was created. None means the broker's default."""
    numbers = {"num_partitions": partitions or -1, "replication_factor": replication or -1}
    return connections.ask(lambda admin: _create(admin, topic, numbers), Deadline(_CREATE_SECONDS))


def _create(admin: Any, topic: str, numbers: dict[str, int]) -> bool:
    kafka_errors = kafka_python().errors
    try:
        admin.create_topics({topic: numbers}, wait_for_metadata=True)
    except kafka_errors.TopicAlreadyExistsError:
        return False
    except (kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError) as error:
        raise errors.denied(f"the creation of topic {topic!r}", type(error).__name__) from None
    except kafka_errors.KafkaError as error:
        if getattr(error, "retriable", False):
            raise errors.unreachable("the cluster", type(error).__name__, _CREATE_SECONDS) from None
        asked = ", ".join(f"{name}={'default' if number < 0 else number}" for name, number in numbers.items())
        raise ConfigurationError(
            f"The topic {topic!r} cannot be created ({asked}): {type(error).__name__}.",
            to_do="ask for a replication factor the cluster has brokers for, or create the topic yourself.",
        ) from None
    return True
