"""Where an executed plan reads its sources, and what each partition of such a scan reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.spark.status import SparkStatus

_KAFKA = "KafkaBatchInputPartition"
_SECRETS = "executorKafkaParams"  # how executors log in; nobody needs it here
_V1 = frozenset({"RDDScanExec", "RowDataSourceScanExec"})


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
            rdd, source = leaf.inputRDD(), _only(sources)
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
    return _only([(uid, offset) for uid, offset in sources if offset == end]) or _only(sources)


def _only(sources: Sequence[tuple[str | None, Any]]) -> str | None:
    uids = {uid for uid, _ in sources}
    return uids.pop() if len(uids) == 1 else None


def _names(status: SparkStatus, partitions: Any, source: str | None) -> tuple[str, ...]:
    count = int(partitions.size())
    first = partitions.apply(0) if count else None
    kind = first.get().getClass() if first is not None and first.isDefined() else None
    if kind is None or str(kind.getSimpleName()) != _KAFKA:
        return _numbered(count, source)
    status.hide(kind, _SECRETS)
    return kafka_names([one["offsetRange"] for one in status.as_json(partitions)])


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
