"""`KafkaSink`: rows into Kafka topics, one transaction per task, visible all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.contracts.sink import CheckContext, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError
from penstock.kafka import errors, settings
from penstock.sinks.kafka.columns import shape_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.kafka.connections import Connections
    from penstock.sinks.kafka.committer import KafkaCommitter
    from penstock.sinks.kafka.writer import KafkaWriter


@dataclass(frozen=True, repr=False)
class KafkaSink(TwoPhaseSink):
    """Exactly once into Kafka, for readers with `isolation.level=read_committed`.

    Takes the columns of Spark's own Kafka sink: `value` (string or binary) and, where there are any, `key`, `topic`,
    `partition`, `headers`, and besides them `timestamp`. `topic` here wins over the column.

    `options` are client settings (SASL, TLS, compression, …) in librdkafka's names, or in Spark's with `kafka.` in
    front. Their secrets never appear in a message, a log or the ledger.

    A transaction that is not committed within `transaction_timeout` is aborted by the broker; a job that is down longer
    between decision and commit repairs it from a replay. The default is the brokers' own default maximum.

    `create_topic` creates a missing `topic`, with `partitions` and `replication` or the broker's defaults, when the
    job starts. Without it a missing topic is an error.
    """

    shapes_once: ClassVar[bool] = True

    topic: str | None = None
    servers: str = field(kw_only=True)
    transactional_id_prefix: str | None = field(default=None, kw_only=True)
    transaction_timeout: str | float = field(default="15min", kw_only=True)
    create_topic: bool = field(default=False, kw_only=True)
    partitions: int | None = field(default=None, kw_only=True)
    replication: int | None = field(default=None, kw_only=True)
    options: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", settings.normalise(self.options))
        if self.create_topic and self.topic is None:
            raise ConfigurationError(
                "create_topic needs the topic's name, and this sink takes it from the column 'topic'.",
                safe="nothing was started.",
                to_do="write KafkaSink('topic', create_topic=True, …), or create the topics beforehand.",
            )
        settings.transaction_seconds(self.transaction_timeout)

    def __repr__(self) -> str:
        shown = settings.mask_secrets(self.options)
        return f"KafkaSink({self.topic!r}, servers={self.servers!r}, options={shown})"

    def describe(self) -> str:
        return f"Kafka topic {self.topic or '(column topic)'} at {self.servers}"

    def shape(self, frame: DataFrame) -> DataFrame:
        return shape_frame(frame, self.topic)

    def redirected(self, suffix: str) -> KafkaSink:
        if self.topic is None:
            raise ConfigurationError(
                "A KafkaSink that takes its topic from the rows cannot put its output aside.",
                safe="nothing was started.",
                to_do="for a fork, name the topic: KafkaSink('topic', …).",
            )
        # The fork's topic is nobody's yet; a missing one is made as the broker makes them.
        return replace(self, topic=f"{self.topic}{suffix}", create_topic=True)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.kafka.connections import reach
        from penstock.sinks.kafka import check

        timeout = settings.transaction_seconds(self.transaction_timeout)
        check.timeouts(context, timeout)
        exists = reach(self.servers, self._producer_settings(), self.topic)
        if not exists and not self.create_topic:
            raise errors.missing(str(self.topic))
        connections = self._connections()
        try:
            found = check.limits(connections, self.topic if exists else None)
        finally:
            connections.close()
        check.broker_limit(timeout, found.max_transaction_timeout)
        batch = int(self.options.get("batch.size", 1_000_000))
        return [Finding(uid, text) for text in check.warnings(self.topic or "", found, batch)]

    def open_writer(self, scope: WriterScope) -> KafkaWriter:
        from penstock.sinks.kafka.pool import Key
        from penstock.sinks.kafka.writer import KafkaWriter

        made = tuple(sorted(self._producer_settings().items()))
        return KafkaWriter(scope, Key(self._prefix(scope.sink), scope.sink.generation, made), self.topic)

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.kafka.writer import DirectKafkaWriter

        return DirectKafkaWriter(self._producer_settings(), self.topic)

    def open_committer(self, scope: SinkScope) -> KafkaCommitter:
        from penstock.sinks.kafka.check import create_topic
        from penstock.sinks.kafka.committer import KafkaCommitter
        from penstock.sinks.kafka.transactions import TransactionClient

        connections = self._connections()
        if self.create_topic and self.topic is not None:
            try:
                create_topic(connections, self.topic, self.partitions, self.replication)
            except BaseException:
                connections.close()
                raise
        client = TransactionClient(
            connections, transaction_timeout=settings.transaction_seconds(self.transaction_timeout)
        )
        return KafkaCommitter(client, self._prefix(scope), scope.generation, self._former_prefix(scope))

    def _prefix(self, scope: SinkScope) -> str:
        """How the ids of this sink's transactions begin; no other sink's do.

        The length tells where the user's part ends: `team` before job `a-b` is not `team-a` before job `b`, which would
        sweep each other's transactions. It stands last, so that access rules for what comes before it hold.
        """
        own = self.transactional_id_prefix
        return f"{own}-{scope.prefix}:{len(own)}" if own else scope.prefix

    def _former_prefix(self, scope: SinkScope) -> str | None:
        """How they began in releases that left the length out, where that is otherwise."""
        own = self.transactional_id_prefix
        return f"{own}-{scope.prefix}" if own else None

    def _producer_settings(self) -> dict[str, str]:
        return settings.for_producer(self.servers, self.options, settings.transaction_seconds(self.transaction_timeout))

    def _connections(self) -> Connections:
        from penstock.kafka.connections import Connections

        return Connections(self.servers, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, ({one.name: getattr(self, one.name) for one in fields(self)},))


def _rebuild(given: Mapping[str, Any]) -> KafkaSink:
    return KafkaSink(**given)
