"""Rows from Kafka topics, through Spark's own connector with settings that suit an epoch of a second."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Finding
from penstock.contracts.source import Source
from penstock.deadline import Deadline
from penstock.kafka.connections import AdminSender, GroupPublisher, describe_topics, librdkafka_admin, until_known
from penstock.kafka.errors import AUTHENTICATION, DENIED
from penstock.kafka.settings import LOGIN_HANDLER, for_java, for_librdkafka, split_options
from penstock.sources.streams import stream_reader
from penstock.spark.registry import Format, wire_columns
from penstock.spark.session import ensure_login

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import DataFrame, SparkSession

    from penstock.storage.storage import Storage

#: Java's defaults are made for many small polls. An epoch reads a known range as fast as it can: fewer, larger fetches
#: made a whole pipeline 1.4 times faster, and a short wait at the end of a range halved its latency.
TUNED: Mapping[str, str] = {
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "receive.buffer.bytes": str(1 << 20),
    "fetch.max.wait.ms": "5",
}

#: A real-time query reads rows as they come. To wait a moment for that many bytes halves its CPU time.
REAL_TIME: Mapping[str, str] = {**TUNED, "fetch.min.bytes": str(64 << 10), "fetch.max.wait.ms": "8"}

#: Real-time mode reads every partition in one task without end, from positions of ours.
_NOT_IN_REAL_TIME = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "startingTimestamp", "startingOffsetsByTimestamp",
)  # fmt: skip

_COMMITTED = "read_committed"
_PATIENCE = 10.0  # seconds for an answer that a query waits for


class KafkaSource(Source):
    """Topics of one cluster: `key binary, value binary, topic string, partition int, offset bigint, timestamp
    timestamp, timestampType int`, and `headers` with the option `includeHeaders`.

    `topics` is a name, names separated by commas, or a sequence; or give `pattern`, a regular expression, instead.
    `starting` counts only for a job without a checkpoint: `"earliest"`, `"latest"`, or positions as Spark writes them
    (`{"topic": {"0": 123}}`, as JSON or as a mapping). `max_offsets_per_epoch` bounds an epoch.

    `options` take librdkafka's or Java's names, with or without `kafka.`, and Spark's own (`minPartitions`, …); what is
    given there always wins. `tuned=False` leaves Java's defaults. Only rows of committed transactions are read, and
    rows that Kafka deleted before they were read stop the job, unless `options` say otherwise.

    A topic that was deleted and created again stops the job (`TopicRecreated`): its positions are those of the former
    one. `accepted_ids` are the ids of topics in which the job is to go on at them all the same.

    `key` and `value` are formats of a schema registry: `Avro`, `Protobuf` or `JsonSchema`. (Many arguments, because a
    reader of the program looks for each by its name.)

    Committed positions are mirrored to the consumer group `group` (`penstock-<job>-<uid>`), for lag tools only.
    """

    def __init__(
        self,
        topics: str | Sequence[str] = (),
        *,
        servers: str | Sequence[str],
        pattern: str | None = None,
        starting: str | Mapping[str, Any] = "earliest",
        max_offsets_per_epoch: int | None = None,
        group: str | None = None,
        accepted_ids: Sequence[str] = (),
        key: Format | None = None,
        value: Format | None = None,
        options: Mapping[str, Any] | None = None,
        tuned: bool = True,
    ) -> None:
        names = topics.split(",") if isinstance(topics, str) else topics
        self.topics = tuple(name.strip() for name in names if name.strip())
        self.pattern = pattern
        self.servers = servers if isinstance(servers, str) else ",".join(servers)
        self.starting = starting if isinstance(starting, str) else json.dumps(starting)
        self.max_offsets_per_epoch, self.group, self.tuned = max_offsets_per_epoch, group, tuned
        self.accepted_ids = (accepted_ids,) if isinstance(accepted_ids, str) else tuple(accepted_ids)
        self._spark_options, self._client_options = split_options(options or {})
        self._publishers: dict[str, GroupPublisher] = {}
        self._looker: AdminClient | None = None  # made when ids or ends of topics are first asked for
        self._refuse_contradictions()
        self._columns = wire_columns(self.topics[0] if len(self.topics) == 1 else None, key, value)

    def _refuse_contradictions(self) -> None:
        problem = ""
        if bool(self.topics) is (self.pattern is not None):
            problem = "needs either topics or a pattern"
        elif not self.servers.strip():
            problem = "needs the servers to connect to"
        elif self.max_offsets_per_epoch is not None and self.max_offsets_per_epoch < 1:
            problem = "needs at least one offset in an epoch"
        elif self.starting not in ("earliest", "latest") and not self.starting.lstrip().startswith("{"):
            problem = f"cannot start at {self.starting!r}"
        if problem:
            raise errors.ConfigurationError(
                f"KafkaSource {problem}.",
                to_do="give topics or a pattern, servers, and starting as earliest, latest or positions in JSON.",
            )

    @classmethod
    def behind(cls, options: Mapping[str, str]) -> KafkaSource | None:
        """What Spark's own reader with these options reads; None where it is not one of Kafka's topics."""
        known = {name.lower(): text for name, text in options.items()}
        topics, pattern = known.get("subscribe", ""), known.get("subscribepattern")
        if not (servers := known.pop("kafka.bootstrap.servers", "")) or bool(topics) is (pattern is not None):
            return None
        kept = {name: text for name, text in known.items() if name.startswith("kafka.") or name == "failondataloss"}
        return cls(topics, servers=servers, pattern=pattern, options={"isolation.level": "read_uncommitted", **kept})

    def reader_options(self, uid: str, tuning: Mapping[str, str] = TUNED) -> dict[str, str]:
        """What Spark's reader is given: ours first, so that the user's win."""
        group = self.group or f"penstock-{uid}"
        options = {"startingOffsets": self.starting, "failOnDataLoss": "true", "groupIdPrefix": group}
        topics = ("subscribe", ",".join(self.topics)) if self.pattern is None else ("subscribePattern", self.pattern)
        options.update([topics])
        if self.max_offsets_per_epoch is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_epoch)
        client = {
            "isolation.level": _COMMITTED,
            **(tuning if self.tuned else {}),
            **for_java(self._client_options),
            "bootstrap.servers": self.servers,
        }
        return {**options, **{f"kafka.{name}": value for name, value in client.items()}, **self._spark_options}

    def real_time_options(self, uid: str) -> dict[str, str]:
        options = self.reader_options(uid, REAL_TIME)
        if refused := [name for name in _NOT_IN_REAL_TIME if name in options]:
            shown = "max_offsets_per_epoch" if self.max_offsets_per_epoch is not None else refused[0]
            raise errors.RealTimeRefused(
                f"Source {uid!r} has {shown}, and a real-time query reads each partition in one task without end.",
                to_do=f"remove {shown}; or leave latency out: the micro-batch mode takes it.",
            )
        return options

    def begin_positions(self, known: Collection[str] = ()) -> dict[str, dict[int, int]]:
        pattern = self.pattern
        topics = self.topics if pattern is None else [name for name in known if re.fullmatch(pattern, name)]
        starting = self._spark_options.get("startingOffsets", self.starting)
        return begin_offsets(self._admin(), self.servers, topics, pattern, starting)

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        options = self.reader_options(uid)
        ensure_login(spark, options.get(f"kafka.{LOGIN_HANDLER}", ""))
        frame = stream_reader(spark, uid).format("kafka").options(**options).load()
        return functools.reduce(lambda rows, column: column.read(rows), self._columns, frame)

    def resolve(self, kept: Storage | None, after: BaseException | None) -> None:
        for column in self._columns:
            column.resolve(kept, after)

    def redirected(self, suffix: str) -> KafkaSource:
        redirected = copy.copy(self)
        redirected.group, redirected._publishers = self.group and f"{self.group}{suffix}", {}
        return redirected

    def warm_up(self, spark: SparkSession, uid: str) -> None:
        """Spark's connector and Kafka's client are classes by the hundred; one row has them all loaded."""
        apart = {"startingOffsets": "earliest", "failOnDataLoss": "false", "groupIdPrefix": f"penstock-standby-{uid}"}
        options = {**self.reader_options(uid), **apart}
        options.pop("maxOffsetsPerTrigger", None)
        spark.read.format("kafka").options(**options).load().limit(1).collect()

    def link(self, uid: str) -> Link:
        if self._tolerates_loss:
            because = "failOnDataLoss=false goes on past rows that Kafka deleted before they were read"
            remedy = "remove failOnDataLoss from the options, so that such a loss stops the job."
            return Link("source", uid, Guarantee.AT_MOST_ONCE, because, remedy)
        isolation = self._client_options.get("isolation.level", _COMMITTED)
        if isolation.strip().lower() != _COMMITTED:
            because = f"isolation.level={isolation} also reads the rows of transactions that were aborted or are open"
            remedy = f"remove isolation.level from the options; the source reads {_COMMITTED}."
            return Link("source", uid, Guarantee.AT_LEAST_ONCE, because, remedy)
        return super().link(uid)

    @property
    def _tolerates_loss(self) -> bool:
        return self._spark_options.get("failOnDataLoss", "true").strip().lower() == "false"

    @property
    def identified(self) -> bool:
        return not self._tolerates_loss

    def parts(self, offset: Any) -> Mapping[str, Any]:
        """The topics of which something was read: of all others, whatever they are now, nothing is skipped."""
        positions = json.loads(offset) if isinstance(offset, str) else offset
        return {topic: offsets for topic, offsets in positions.items() if any(offsets.values())}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        wanted, pattern = ({*names, *self.topics}, self.pattern) if subscribed else (names, None)
        return topic_ids(self._admin(), self.servers, wanted, pattern)

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:
        new = {name: now for name, (_, now) in replaced.items() if now not in self.accepted_ids}
        if new:
            shown = ", ".join(f"{name!r} (id {replaced[name][0]}, now {now})" for name, now in new.items())
            raise errors.TopicRecreated(
                f"The positions of source {uid!r} were written for other topics than those that now have the names:"
                f" {shown}. They were deleted and created again, or the job reads another cluster.",
                safe="no epoch that read the new topics was decided; what is committed stays.",
                to_do="to read the new topics from their beginning, give the source another uid and restore the newest"
                " checkpoint with --allow-non-restored-state, or use another query uid to start over; to go on at the"
                f" old positions, because the same rows are there, KafkaSource(…, accepted_ids={list(new.values())}).",
            )

    def _admin(self) -> AdminClient:
        if self._looker is None:
            self._looker = librdkafka_admin(for_librdkafka(self.servers, self._client_options))
        return self._looker

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        for_java(self._client_options)  # raises what cannot be translated before anything connects
        settings = for_librdkafka(self.servers, self._client_options)
        findings = check_topics(settings, self.topics, self.pattern, uid, min(10.0, context.timeout_seconds))
        if not findings and self.identified and not self.identities((), subscribed=True):
            unknown = "the brokers give topics no ids: one that is deleted and created again is not noticed"
            return (Finding(uid, unknown),)
        return findings

    def publish(self, job: str, uid: str, offset: Any) -> None:
        if not offset:
            return
        group = self.group or f"penstock-{job}-{uid}"
        if group not in self._publishers:
            connection = for_librdkafka(self.servers, self._client_options)
            del connection["bootstrap.servers"], connection["client.id"]
            sender = AdminSender(self.servers, connection)
            self._publishers[group] = GroupPublisher(sender, group, end=sender.close)
        self._publishers[group].publish(json.loads(offset) if isinstance(offset, str) else offset)

    def stop(self) -> None:
        while self._publishers:
            self._publishers.popitem()[1].close()
        self._looker = None

    def end_positions(self, offset: Any, deadline: Deadline) -> Mapping[str, int]:
        if not offset:
            return {}
        return end_offsets(self._admin(), json.loads(offset) if isinstance(offset, str) else offset, deadline)

    def jars(self) -> Sequence[str]:
        return ("spark-kafka",)

    def describe(self) -> str:
        what = f"topics like {self.pattern}" if self.pattern is not None else ", ".join(self.topics)
        return f"Kafka {what} at {self.servers}"

    def __repr__(self) -> str:
        return f"KafkaSource({self.describe()})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publishers": {}, "_looker": None}  # threads and connections stay in their process


def check_topics(
    settings: Mapping[str, str], topics: Sequence[str], pattern: str | None, uid: str, patience: float
) -> Sequence[Finding]:
    """`SystemUnavailable`, `AccessDenied` or `TopicMissing`; for a pattern that matches nothing yet, a finding."""
    heard: list[Any] = []
    client = librdkafka_admin(settings, heard.append)
    from confluent_kafka import KafkaException

    try:
        listed = client.list_topics(timeout=patience).topics
        if pattern is not None:
            matched = any(re.fullmatch(pattern, name) for name in listed)
            return () if matched else (Finding(uid, f"no topic matches {pattern} yet"),)
        # Asked by name as well: a topic this user may not see is absent from the list, but not missing.
        unlisted = [name for name in topics if name not in listed]
        if missing := [name for name in unlisted if name not in describe_topics(client, unlisted, patience)]:
            raise _missing(missing[0], settings["bootstrap.servers"])
    except KafkaException as error:
        client.poll(1.0)  # callbacks run only in here: what the client heard meanwhile may explain its silence
        raise translate_error(error.args[0], heard, settings["bootstrap.servers"]) from error
    return ()


def topic_ids(client: AdminClient, servers: str, names: Collection[str], pattern: str | None) -> dict[str, str]:
    """The id of each of these topics, and of those that match `pattern`. A topic that is not there is left out, and so
    are all where the brokers give topics no ids (before Kafka 2.8)."""
    from confluent_kafka import KafkaException

    try:
        listed = client.list_topics(timeout=_PATIENCE).topics if pattern is not None else {}
        matches = (name for name in listed if re.fullmatch(pattern or "", name))
        described = describe_topics(client, {*names, *matches}, _PATIENCE)
    except KafkaException as error:
        raise translate_error(error.args[0], (), servers, safe="nothing was decided.") from error
    ids = {name: str(known.topic_id) for name, known in described.items()}
    return {name: id_ for name, id_ in ids.items() if id_.strip("A")}  # 16 zero bytes: no id


def _missing(name: str, servers: str) -> errors.TopicMissing:
    return errors.TopicMissing(
        f"There is no topic {name!r} at {servers}.", to_do="create the topic, or correct its name."
    )


def translate_error(
    error: Any, heard: Sequence[Any], servers: str, *, safe: str = "nothing was started."
) -> errors.PenstockError:
    """One of our errors for one of librdkafka's. A refused login shows only as silence of the request, so what the
    client `heard` meanwhile counts as well."""
    for fault in (error, *heard):
        if fault.code() in (AUTHENTICATION, *DENIED):
            return errors.AccessDenied(
                f"Kafka at {servers} refused: {fault.str()}.",
                safe=safe,
                to_do="check user, password and mechanism, and the right to read and describe the topics.",
            )
    detail = heard[-1].str() if heard else error.str()
    return errors.SystemUnavailable(
        f"Kafka at {servers} does not answer: {detail}.",
        safe=safe,
        to_do="check that the brokers run, that this machine reaches them, and security.protocol.",
    )


def end_offsets(client: AdminClient, read: Mapping[str, Mapping[str, Any]], deadline: Deadline) -> dict[str, int]:
    """The end of each partition that `read` names, up to which committed rows can be read, as `TOPIC-PARTITION`; those
    that did not answer in time are left out."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    partitions = [TopicPartition(topic, int(number)) for topic, numbers in read.items() for number in numbers]
    asked = dict.fromkeys(partitions, latest)
    if not asked:
        return {}
    patience = max(0.1, deadline.remaining())
    ends = {}
    try:
        answers = client.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=patience)
    except KafkaException:
        return {}
    for place, future in answers.items():
        with contextlib.suppress(KafkaException, TimeoutError):
            ends[f"{place.topic}-{place.partition}"] = int(future.result(timeout=patience).offset)
    return ends


def begin_offsets(
    client: AdminClient, servers: str, topics: Collection[str], pattern: str | None, starting: str
) -> dict[str, dict[int, int]]:
    """`starting`, as numbers, for every partition of these topics, and of those that match `pattern`; with a pattern,
    `topics` may be gone. Positions in JSON may lack partitions: those begin at their earliest row."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    fixed = json.loads(starting) if starting.lstrip().startswith("{") else {}
    ends: Any = {-1: OffsetSpec.latest(), -2: OffsetSpec.earliest()}  # type: ignore[no-untyped-call]
    usual = -1 if starting == "latest" else -2
    try:
        listed = until_known(topics, lambda: client.list_topics(timeout=_PATIENCE).topics)
        names = topics if pattern is None else sorted(name for name in listed if re.fullmatch(pattern, name))
        if missing := [name for name in names if name not in listed]:
            raise _missing(missing[0], servers)
        found = {
            TopicPartition(name, number): int(fixed.get(name, {}).get(str(number), usual))
            for name in names
            for number in listed[name].partitions
        }
        asked = {place: ends[offset] for place, offset in found.items() if offset < 0}
        committed = IsolationLevel.READ_COMMITTED
        answers = client.list_offsets(asked, isolation_level=committed, request_timeout=_PATIENCE) if asked else {}
        found.update({place: int(future.result(_PATIENCE).offset) for place, future in answers.items()})
    except KafkaException as error:
        raise translate_error(error.args[0], (), servers) from error
    begins: dict[str, dict[int, int]] = {name: {} for name in names}
    for place, offset in sorted(found.items(), key=lambda item: (item[0].topic, item[0].partition)):
        begins[place.topic][place.partition] = offset
    return begins
