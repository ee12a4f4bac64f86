"""What Spark knows of a query: when the tasks that read an epoch's sources reached its barrier, and its operators.

Cuts come from the status store behind Spark's web page, which is there with the page on or off. It does not know what a
task reads: cuts are numbered, and carry a source's uid only where the query has one source.
"""

from __future__ import annotations

import json
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.record import Alignment, PartitionCut
from penstock.deadline import Deadline
from penstock.spark.query import analysed, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_JOBS = 50  # of one epoch
_MOST_TASKS = 10_000
_PATIENCE = 2.0  # seconds, for Spark's bookkeeping to catch up with what has ended
_POLL = 0.02
_NODE = re.compile(r"^[\s:+\-|*~]*(?:\(\d+\)\s*)?'?(?P<name>[A-Z]\w*)(?P<rest>.*)$")
_HIDDEN = ("SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
_LEAVES = re.compile(r"^(Streaming\w*Relation\w*|\w*Relation(V2)?|Range)$")
_STATEFUL = re.compile(r"^(Aggregate|Deduplicate\w*|\w*WithState\w*|Distinct|GlobalLimit)$")
_MOST_OPERATORS = 50
_known: weakref.WeakKeyDictionary[SparkSession, SparkStatus] = weakref.WeakKeyDictionary()


class SparkStatus:
    """The status store of one session, in the terms of Spark's REST API. An entry may be gone (Spark keeps the newest
    thousand) or not there yet: the store runs a little behind. Any call may raise what py4j raises."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._jvm: Any = gateway.jvm
        jackson = gateway.jvm.com.fasterxml.jackson
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()
        self._tracker = spark.sparkContext.statusTracker()
        self._no_statuses = gateway.jvm.java.util.ArrayList()
        self._no_quantiles = gateway.new_array(gateway.jvm.double, 0)
        self._mapper = jackson.databind.ObjectMapper()
        self._mapper.registerModule(jackson.module.scala.DefaultScalaModule())

    @classmethod
    def of(cls, spark: SparkSession) -> SparkStatus:
        """The one of this session, made once: finding classes is what costs."""
        if spark not in _known:
            _known[spark] = cls(spark)
        return _known[spark]

    def job_ids(self, group: str) -> list[int]:
        """The jobs of a group, newest first. Spark names a query's group after its run."""
        return sorted(self._tracker.getJobIdsForGroup(group), reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        return dict(self._json(self._store.job(number)))

    def attempts(self, stage: int) -> list[dict[str, Any]]:
        body = self._json(self._store.stageData(stage, False, self._no_statuses, False, self._no_quantiles))
        return sorted(body, key=lambda attempt: int(attempt["attemptId"]))

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        return list(self._json(self._store.taskList(stage, attempt, _MOST_TASKS)))

    def executors(self) -> list[dict[str, Any]]:
        """The active ones. The driver is among them; it runs tasks with a local master only."""
        return list(self._json(self._store.executorList(True)))

    def threads(self) -> list[dict[str, Any]]:
        """Of the driver's JVM."""
        return list(self._json(self._jvm.org.apache.spark.util.Utils.getThreadDump()))

    def _json(self, thing: Any) -> Any:
        return json.loads(self._mapper.writeValueAsString(thing))


def measure(spark: SparkSession, group: str, opened: float, *, epoch: int, uids: Sequence[str | None]) -> Alignment:
    """The alignment of a prepared epoch, counted from `opened` (seconds since 1970). `group` is the job group it ran
    under (the query's run id), `uids` name its sources. Costs a few calls to the JVM, and may raise what py4j raises;
    call it beside the epochs, from any thread."""
    status = SparkStatus.of(spark)
    stages = [_first_successes(status, attempts) for attempts in _reading_stages(status, group, epoch)]
    # Spark may run stages before it calls us: then the barrier was before the first of them.
    start = min([opened * 1000, *(float(task["launchTime"]) for tasks in stages for task in tasks.values())])
    source = uids[0] if len(uids) == 1 else None
    cuts = []
    for number, tasks in enumerate(stages):
        label = " ".join(filter(None, [source, f"stage {number + 1}" if len(stages) > 1 else ""]))
        for index, task in tasks.items():
            began = float(task["launchTime"]) - start
            rows = ((task.get("taskMetrics") or {}).get("inputMetrics") or {}).get("recordsRead")
            times = round(began, 3), round(began + float(task["duration"]), 3)
            cuts.append(PartitionCut(f"{label} #{index}".strip(), source, rows, *times))
    return Alignment.of(cuts, None if cuts else "Spark reports no task that read rows")


def is_reading(status: SparkStatus, group: str, epoch: int) -> bool:
    """Whether an epoch that is under way still reads its sources: no job of it has begun, or one runs a stage that
    feeds another, or its only one. May raise what py4j raises."""
    jobs = [job for job in _jobs(status, group, epoch) if _batch(job) == epoch]
    for job in jobs:
        stages = sorted(map(int, job["stageIds"])) if job["status"] == "RUNNING" else []
        feeding = stages[:-1] or stages  # a job's last stage has the highest number
        if any(attempt["status"] in ("ACTIVE", "PENDING") for stage in feeding for attempt in status.attempts(stage)):
            return True
    return not jobs


def _reading_stages(status: SparkStatus, group: str, epoch: int) -> list[list[dict[str, Any]]]:
    """Once the epoch's jobs are over. A stage that computes an RDD of an earlier one reads its rows again."""
    patience = Deadline(_PATIENCE)
    while not (jobs := list(_jobs(status, group, epoch))) or any(job["status"] == "RUNNING" for job in jobs):
        if patience.passed():
            break
        time.sleep(_POLL)
    stages: list[list[dict[str, Any]]] = []
    computed: set[int] = set()
    for number in sorted({int(stage) for job in jobs for stage in job["stageIds"]}):
        attempts = status.attempts(number)
        if any(attempt["status"] == "COMPLETE" and attempt["inputRecords"] for attempt in attempts):
            rdds = set(map(int, attempts[0]["rddIds"]))
            if not rdds & computed:
                stages.append(attempts)
            computed |= rdds
    return stages


def _jobs(status: SparkStatus, group: str, epoch: int) -> Iterator[dict[str, Any]]:
    """The jobs of one epoch. Spark describes them by its number; one that the user described otherwise counts, too."""
    for number in status.job_ids(group)[:_MOST_JOBS]:
        job = status.job(number)
        batch = _batch(job)
        if batch is None or batch == epoch:
            yield job
        elif batch < epoch:
            return


def _batch(job: Mapping[str, Any]) -> int | None:
    batch = str(job.get("description") or "").rpartition("batch = ")[2]
    return int(batch) if batch.isdigit() else None


def _first_successes(status: SparkStatus, attempts: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """For each partition of a stage the task that succeeded first; a later attempt reads only what was lost."""
    tasks: dict[int, dict[str, Any]] = {}
    for attempt in attempts:
        for task in status.tasks(int(attempt["stageId"]), int(attempt["attemptId"])):
            if task["status"] == "SUCCESS" and task.get("duration") is not None:
                number = int(task["partitionId"])
                first = tasks.get(number, task)
                tasks[number] = min(first, task, key=lambda done: float(done["launchTime"]) + float(done["duration"]))
    return tasks


def operators_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The operators of a query, from the sources on, by Spark's analysed plan: each one's name, and whether it keeps
    state. A join keeps state where both of its sides are streams. Runs no Spark job."""
    tree = analysed(frame)
    streams = sum(leaf.isStreaming() for leaf in items(tree.collectLeaves()))
    operators = []
    for line in str(tree.toString()).splitlines():
        match = _NODE.match(line)
        if match is None or match["name"] in _HIDDEN or _LEAVES.match(match["name"]):
            continue
        name = match["name"]
        stateful = bool(_STATEFUL.match(name)) or (name == "Join" and streams > 1)
        kind = [word.rstrip(",") for word in match["rest"].split()[:1]] if name == "Join" else []
        operators.append({"name": " ".join([name, *kind]), "stateful": stateful})
    return operators[::-1][:_MOST_OPERATORS]
