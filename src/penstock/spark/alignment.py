"""When each source partition was read up to the barrier of an epoch, from what Spark knows of its tasks.

The executed plan says which scans there are and what each partition of them reads. The stages of the epoch's jobs say
which RDDs they computed; the one that computed a scan's RDD first is where it was read. Inside a stage, partitions of
an RDD are those of the RDD below as long as every step between them is one to one, or a union. Then task *n* is known
to have read partition *n*, and its end is when the cut was reached. Where a step is anything else, the answer is "not
known": a coalesced plan reads several partitions in one task, and nobody can tell which of them was slow.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.checkpoint.record import Alignment, PartitionCut
from penstock.deadline import Deadline
from penstock.spark.status import Scan, SparkStatus, scans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["Alignment", "PartitionCut", "is_reading", "measure", "measure_later", "scan_partitions"]

log = logging.getLogger("penstock")

_ONE_TO_ONE = frozenset({"MapPartitionsRDD", "MapPartitionsWithEvaluatorRDD", "SQLExecutionRDD", "StateStoreRDD"})
_MOST_JOBS = 50  # of one epoch
_PATIENCE = 2.0  # seconds, for Spark's bookkeeping to catch up with what has ended
_POLL = 0.02
_complained: set[str] = set()
_K = TypeVar("_K")


def measure(
    spark: SparkSession,
    executed_plan: Any,
    group: str,
    opened: float,
    *,
    epoch: int,
    sources: Sequence[tuple[str | None, Any]] = (),
) -> Alignment | None:
    """The alignment of an epoch that has been prepared, counted from `opened` (seconds since 1970).

    `executed_plan` is the physical plan that Spark executed for it, `group` the job group it ran under (the query's run
    id), `sources` the uid and offset of each source in its barrier. Never raises: None, and one line in the log, where
    it cannot be measured. Costs a few dozen calls to the JVM, however many partitions there are; call it beside the
    epochs."""
    try:
        return _measure(SparkStatus.of(spark), executed_plan, group, opened, epoch, sources)
    except Exception as error:
        if type(error).__name__ not in _complained:
            _complained.add(type(error).__name__)
            log.warning("the alignment of an epoch could not be measured, which is said once: %r", error)
        return None


def measure_later(
    spark: SparkSession,
    executed_plan: Any,
    opened: float,
    *,
    epoch: int,
    sources: Sequence[tuple[str | None, Any]] = (),
) -> Callable[[], Alignment | None]:
    """`measure`, to be called after the epoch and from any thread. Call this in the thread that runs the epoch, which
    knows the job group."""
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id") or ""
    return lambda: measure(spark, executed_plan, group, opened, epoch=epoch, sources=sources)


def is_reading(status: SparkStatus, group: str, epoch: int) -> bool:
    """Whether an epoch that is under way still reads its sources: no job of it has begun, or one has a stage that is
    not over and takes nothing from other stages. May raise what py4j raises."""
    jobs = [job for job in _jobs(status, group, epoch) if _batch(job) == epoch]
    stages = {int(stage) for job in jobs if job["status"] == "RUNNING" for stage in job["stageIds"]}
    return not jobs or any(
        attempt["status"] in ("ACTIVE", "PENDING") and not status.graph(stage)["incomingEdges"]
        for stage in sorted(stages)
        for attempt in _attempts(status, stage)
    )


def scan_partitions(graph: Mapping[str, Any], scans: Iterable[Scan]) -> list[tuple[Scan, int]] | None:
    """What each partition of a stage reads: a scan, and which of its partitions. None where it is not one of them.

    `graph` holds `edges` between RDDs and the tree of their names, as Spark draws them."""
    by_rdd = {scan.rdd: scan for scan in scans}
    nodes = {int(node["id"]): node for node in _nodes(graph["rootCluster"])}
    parents: dict[int, list[int]] = {number: [] for number in nodes}
    for edge in graph["edges"]:
        parents[int(edge["toId"])].append(int(edge["fromId"]))
    tops = nodes.keys() - {parent for own in parents.values() for parent in own}

    def below(number: int) -> list[tuple[Scan, int]] | None:
        if number in by_rdd:
            return [(by_rdd[number], index) for index in range(len(by_rdd[number].partitions))]
        name, own = nodes[number]["name"], parents[number]
        if len(own) == 1 and (name in _ONE_TO_ONE or nodes[number]["cached"]):  # a cached one bears a name of its own
            return below(own[0])
        if name == "UnionRDD" and own:
            parts = [below(parent) for parent in own]
            return [place for part in parts for place in part or ()] if None not in parts else None
        return None

    return below(tops.pop()) if len(tops) == 1 else None


def _nodes(cluster: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from cluster["_childNodes"]
    for child in cluster["_childClusters"]:
        yield from _nodes(child)


def _measure(
    status: SparkStatus,
    plan: Any,
    group: str,
    opened: float,
    epoch: int,
    sources: Sequence[tuple[str | None, Any]],
) -> Alignment:
    scans, unknown = scans_of(status, plan, sources)
    by_stage: dict[int, list[Scan]] = {}
    attempts_of: dict[int, list[dict[str, Any]]] = {}
    for scan, attempts in _first_stages(status, group, epoch, scans):
        if not attempts:
            unknown.append(f"Spark does not know where {_what(scan)} was read")
            continue
        stage = int(attempts[0]["stageId"])
        by_stage.setdefault(stage, []).append(scan)
        attempts_of[stage] = attempts
    found: dict[tuple[Scan, int], dict[str, Any]] = {}
    for stage, own in by_stage.items():
        where = scan_partitions(status.graph(stage), scans)
        tasks = _tasks(status, attempts_of[stage])
        if where is None or len(where) != attempts_of[stage][0]["numTasks"]:
            unknown.extend(f"a task of {_what(scan)} does not read one partition" for scan in own)
            continue
        for number, place in enumerate(where):
            if place[0] in own and number in tasks:
                _keep_first(found, place, tasks[number])
    # Spark may run stages before it calls us: then the barrier was before the first of them.
    start = min([opened * 1000, *(float(task["launchTime"]) for task in found.values())])
    cuts = (_cut(scan, index, task, start) for (scan, index), task in found.items())
    return Alignment.of(cuts, "; ".join(unknown) or None)


def _cut(scan: Scan, index: int, task: Mapping[str, Any], start: float) -> PartitionCut:
    began = float(task["launchTime"]) - start
    metrics = (task.get("taskMetrics") or {}).get("inputMetrics") or {}
    return PartitionCut(
        partition=scan.partitions[index],
        source=scan.source,
        rows=metrics.get("recordsRead"),
        started_ms=round(began, 3),
        reached_ms=round(began + float(task["duration"]), 3),
    )


def _what(scan: Scan) -> str:
    return f"source {scan.source!r}" if scan.source else "a source"


# Stages and tasks


def _first_stages(
    status: SparkStatus, group: str, epoch: int, scans: Sequence[Scan]
) -> Iterator[tuple[Scan, list[dict[str, Any]]]]:
    """For each scan the attempts at the first stage that read it; later ones read it again, or a copy of it."""
    patience = Deadline(_PATIENCE)
    while True:
        jobs = list(_jobs(status, group, epoch)) if scans else []
        numbers = sorted({int(stage) for job in jobs for stage in job["stageIds"]})
        stages = [attempts for attempts in (_attempts(status, number) for number in numbers) if attempts]
        first = {
            scan: next((one for one in stages if scan.rdd in one[0]["rddIds"] and _complete(one)), []) for scan in scans
        }
        all_ended = jobs and all(job["status"] != "RUNNING" for job in jobs)
        if all(first.values()) or all_ended or patience.passed():
            yield from first.items()
            return
        time.sleep(_POLL)


def _jobs(status: SparkStatus, group: str, epoch: int) -> Iterator[dict[str, Any]]:
    """The jobs of one epoch. Spark describes them by its number; one that somebody described otherwise is taken, too:
    its RDDs will tell."""
    for number in status.job_ids(group)[:_MOST_JOBS]:
        job = status.job(number)
        batch = _batch(job)
        if batch is None or batch == epoch:
            yield job
        elif batch < epoch:
            return


def _batch(job: Mapping[str, Any]) -> int | None:
    """The epoch that Spark describes a job by."""
    batch = str(job.get("description") or "").rpartition("batch = ")[2]
    return int(batch) if batch.isdigit() else None


def _attempts(status: SparkStatus, stage: int) -> list[dict[str, Any]]:
    return sorted(status.stages(stage), key=lambda one: int(one["attemptId"]))


def _complete(attempts: Sequence[Mapping[str, Any]]) -> bool:
    return any(attempt["status"] == "COMPLETE" for attempt in attempts)


def _tasks(status: SparkStatus, attempts: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """For each partition the first task that succeeded."""
    found: dict[int, dict[str, Any]] = {}
    for attempt in attempts:
        for task in status.tasks(int(attempt["stageId"]), int(attempt["attemptId"])):
            if task["status"] != "SUCCESS" or task.get("duration") is None:
                continue
            _keep_first(found, int(task["partitionId"]), task)
    return found


def _keep_first(found: dict[_K, dict[str, Any]], key: _K, task: dict[str, Any]) -> None:
    """A partition that is read twice, by another attempt or another branch of the plan, has reached its cut once."""
    if key not in found or _end(task) < _end(found[key]):
        found[key] = task


def _end(task: Mapping[str, Any]) -> float:
    return float(task["launchTime"]) + float(task["duration"])
