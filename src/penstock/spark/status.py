"""What Spark knows of the jobs, stages and tasks it ran, and of the scans in an executed plan, read in few calls.

Spark keeps this with or without its web page. A call to the JVM costs a tenth of a millisecond and up, so nothing is
asked task by task: Spark's own JSON writer turns whole lists into text over there.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.spark.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

_KAFKA = "KafkaBatchInputPartition"
_SECRETS = "executorKafkaParams"  # how executors log in; nobody needs it here
_V1 = frozenset({"RDDScanExec", "RowDataSourceScanExec"})

_JACKSON = "com.fasterxml.jackson"
_MOST_TASKS = 10_000
_known: weakref.WeakKeyDictionary[SparkSession, SparkStatus] = weakref.WeakKeyDictionary()


class SparkStatus:
    """One session's jobs. What is asked for may be gone (Spark keeps the newest thousand) or not there yet: its
    bookkeeping runs a little behind. Any call may raise what py4j raises."""

    def __init__(self, spark: SparkSession) -> None:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        context: Any = spark.sparkContext._jsc.sc()
        self._jvm = gateway.jvm
        self.partition_groups = version_of(spark).partition_groups
        self._store, self._tracker = context.statusStore(), context.statusTracker()
        self._arrays = self._class("java.util.Arrays")
        self._no_list, self._no_numbers = self._class("java.util.ArrayList")(), gateway.new_array(gateway.jvm.double, 0)
        self._new_array = gateway.new_array
        self._hidden: set[str] = set()
        self._mapper = self._class(f"{_JACKSON}.databind.ObjectMapper")()
        self._mapper.registerModule(self._class(f"{_JACKSON}.module.scala.DefaultScalaModule")())
        fields = self._class(f"{_JACKSON}.annotation.PropertyAccessor").FIELD
        self._mapper.setVisibility(fields, self._class(f"{_JACKSON}.annotation.JsonAutoDetect$Visibility").ANY)

    @classmethod
    def of(cls, spark: SparkSession) -> SparkStatus:
        """The one of this session. Made once: finding a class and learning its fields is what costs."""
        if spark not in _known:
            _known[spark] = cls(spark)
        return _known[spark]

    def job_ids(self, group: str) -> list[int]:
        """The jobs of a group, newest first. Spark names a query's group after its run."""
        return sorted(json.loads(self._arrays.toString(self._tracker.getJobIdsForGroup(group))), reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        body: dict[str, Any] = self.as_json(self._store.job(number))
        return body

    def stages(self, number: int) -> list[dict[str, Any]]:
        """The attempts at one stage. A stage that was skipped, because what it makes was there, says so."""
        attempts = self._store.stageData(number, False, self._no_list, False, self._no_numbers)
        found: list[dict[str, Any]] = self.as_json(attempts)
        return found

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.as_json(self._store.taskList(stage, attempt, _MOST_TASKS))
        return found

    def graph(self, stage: int) -> dict[str, Any]:
        """The RDDs of a stage, and which is made of which."""
        body: dict[str, Any] = self.as_json(self._store.operationGraphForStage(stage))
        return body

    def as_json(self, thing: Any) -> Any:
        """A JVM object's fields, whoever may see them."""
        return json.loads(self._mapper.writeValueAsString(thing))

    def hide(self, kind: Any, field: str) -> None:
        """From now on, leave this field of a JVM class out. Call it before the first of them is turned into JSON."""
        if field in self._hidden:
            return
        names = self._new_array(self._jvm.String, 1)
        names[0] = field
        value = self._class(f"{_JACKSON}.annotation.JsonIgnoreProperties$Value")
        self._mapper.configOverride(kind).setIgnorals(value.forIgnoredProperties(names))
        self._hidden.add(field)

    def _class(self, name: str) -> Any:
        found: Any = self._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found


@dataclass(frozen=True, slots=True)
class Scan:
    """One place of a plan where a stream is read: its RDD, the source's uid, and a name for each partition."""

    rdd: int
    source: str | None
    partitions: tuple[str, ...]


def scans_of(status: SparkStatus, plan: Any, sources: Sequence[tuple[str | None, Any]]) -> tuple[list[Scan], list[str]]:
    """The scans of streams in an executed plan (a JVM object), and for those that cannot be followed, why. A source
    without new rows has none. `sources`: uid and offset of each source in the barrier."""
    scans, unknown = [], []
    for leaf, kind in _leaves(plan):
        if kind == "MicroBatchScanExec":
            source = _uid(leaf, sources)
            scans.append(Scan(int(leaf.inputRDD().id()), source, _names(status, leaf.partitions(), source)))
        elif kind == "FileSourceScanExec" and leaf.getStream().isDefined():
            rdd, source = leaf.inputRDD(), _single(sources)
            scans.append(Scan(int(rdd.id()), source, _numbered(int(rdd.getNumPartitions()), source)))
        elif kind in _V1 and leaf.getStream().isDefined():
            unknown.append(f"Spark does not tell the partitions of a source of the first kind ({kind})")
    return [scan for scan in scans if scan.partitions], unknown


def _leaves(plan: Any) -> Iterator[tuple[Any, str]]:
    found = plan.collectLeaves()
    for index in range(found.size()):
        leaf = found.apply(index)
        kind = str(leaf.getClass().getSimpleName())
        if kind == "AdaptiveSparkPlanExec":
            yield from _leaves(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from _leaves(leaf.plan())
        else:
            yield leaf, kind


def _uid(leaf: Any, sources: Sequence[tuple[str | None, Any]]) -> str | None:
    """The source whose offset in the barrier is where this scan ends; None where two sources are at the same one."""
    end = json.loads(leaf.end().json())
    return _single([(uid, offset) for uid, offset in sources if offset == end]) or _single(sources)


def _single(sources: Sequence[tuple[str | None, Any]]) -> str | None:
    uids = {uid for uid, _ in sources}
    return uids.pop() if len(uids) == 1 else None


def _names(status: SparkStatus, partitions: Any, source: str | None) -> tuple[str, ...]:
    count = int(partitions.size())
    first: Any = partitions.apply(0) if count else None
    # A group of one, unless a source says how it is partitioned, which no stream of ours does.
    grouped = status.partition_groups
    there = first is not None and bool(first.size() == 1 if grouped else first.isDefined())
    kind = (first.apply(0) if grouped else first.get()).getClass() if there else None
    if kind is None or str(kind.getSimpleName()) != _KAFKA:
        return _numbered(count, source)
    status.hide(kind, _SECRETS)
    found = status.as_json(partitions)
    return kafka_names([one["offsetRange"] for one in (itertools.chain(*found) if grouped else found)])


def kafka_names(ranges: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Topic and partition; with the offset it starts from, where Spark has split one partition between tasks."""
    plain = [f"{one['topicPartition']['topic']}-{one['topicPartition']['partition']}" for one in ranges]
    count = Counter(plain)
    return tuple(
        name if count[name] == 1 else f"{name} from {one['fromOffset']}"
        for name, one in zip(plain, ranges, strict=True)
    )


def _numbered(count: int, source: str | None) -> tuple[str, ...]:
    """For partitions without names of their own. The number says nothing beyond this epoch."""
    start = f"{source} " if source else ""
    return tuple(f"{start}#{index}" for index in range(count))
