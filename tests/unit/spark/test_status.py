"""From what Spark tells of its jobs, stages and tasks to the cut of each source partition; and when to say "not known".

The answers here have the shape of Spark's; `tests/integration/test_checkpoint_record.py` asks Spark itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.engine.observer import progress_of, state_sizes
from penstock.spark import alignment
from penstock.spark.alignment import Alignment, is_reading, measure, scan_partitions
from penstock.spark.status import Scan, SparkStatus, kafka_names, scans_of

ORDERS = Scan(3, "orders", ("orders-1", "orders-0", "orders-2"))
TICKS = Scan(5, "ticks", ("ticks-0",))


def graph(nodes: Mapping[int, str], edges: Sequence[tuple[int, int]], cached: Sequence[int] = ()) -> dict[str, Any]:
    """As Spark draws a stage: RDDs in clusters inside clusters."""
    drawn = [{"id": number, "name": name, "cached": number in cached} for number, name in nodes.items()]
    inner = {"id": "7", "_childNodes": drawn[1:], "_childClusters": []}
    return {
        "edges": [{"fromId": one, "toId": other} for one, other in edges],
        "rootCluster": {"id": "stage_0", "_childNodes": drawn[:1], "_childClusters": [inner]},
    }


def names(found: Sequence[tuple[Scan, int]] | None) -> list[str] | None:
    return None if found is None else [scan.partitions[index] for scan, index in found]


# Which task read which partition


def test_a_chain_of_one_to_one_steps() -> None:
    chain = graph({3: "DataSourceRDD", 4: "MapPartitionsRDD", 9: "MapPartitionsRDD"}, [(3, 4), (4, 9)])
    assert names(scan_partitions(chain, [ORDERS])) == ["orders-1", "orders-0", "orders-2"]


def test_a_scan_alone() -> None:
    assert names(scan_partitions(graph({3: "DataSourceRDD"}, []), [ORDERS])) == ["orders-1", "orders-0", "orders-2"]


def test_a_union_lines_its_parts_up() -> None:
    union = graph(
        {3: "DataSourceRDD", 4: "MapPartitionsRDD", 5: "DataSourceRDD", 6: "UnionRDD", 7: "MapPartitionsRDD"},
        [(3, 4), (5, 6), (4, 6), (6, 7)],
    )
    assert names(scan_partitions(union, [ORDERS, TICKS])) == ["ticks-0", "orders-1", "orders-0", "orders-2"]


def test_a_cached_batch_bears_a_name_of_its_own() -> None:
    chain = [(3, 4), (4, 9)]
    nodes = {3: "DataSourceRDD", 4: "*(1) Project [value#1]", 9: "MapPartitionsRDD"}
    assert names(scan_partitions(graph(nodes, chain, cached=[4]), [ORDERS])) == ["orders-1", "orders-0", "orders-2"]
    assert scan_partitions(graph(nodes, chain), [ORDERS]) is None


@pytest.mark.parametrize("between", ["CoalescedRDD", "ZippedPartitionsRDD2", "PartitionerAwareUnionRDD", "NewRDD"])
def test_any_other_step_is_not_known(between: str) -> None:
    assert (
        scan_partitions(graph({3: "DataSourceRDD", 4: between, 5: "MapPartitionsRDD"}, [(3, 4), (4, 5)]), [ORDERS])
        is None
    )


def test_a_union_with_something_that_is_not_a_scan_is_not_known() -> None:
    union = graph({2: "ShuffledRowRDD", 3: "DataSourceRDD", 6: "UnionRDD"}, [(2, 6), (3, 6)])
    assert scan_partitions(union, [ORDERS]) is None


def test_two_ends_of_a_stage_are_not_known() -> None:
    assert (
        scan_partitions(
            graph({3: "DataSourceRDD", 4: "MapPartitionsRDD", 5: "MapPartitionsRDD"}, [(3, 4), (3, 5)]), [ORDERS]
        )
        is None
    )


# What the plan reads


class Jvm:
    """A JVM object: methods that answer."""

    def __init__(self, kind: str = "", **answers: Any) -> None:
        self._kind, self._answers = kind, answers

    def getClass(self) -> Jvm:  # noqa: N802 - Java's name
        return Jvm(getSimpleName=self._kind, getName=f"org.apache.spark.{self._kind}")

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["_answers"]:
            raise AttributeError(name)
        answer = self._answers[name]
        return lambda *args: answer(*args) if callable(answer) else answer


def seq(*items: Any) -> Jvm:
    return Jvm(size=len(items), apply=lambda index: items[index], items=list(items))


def some(thing: Any) -> Jvm:
    return Jvm(isDefined=True, get=thing)


NONE = Jvm(isDefined=False)


def offsets(topic: str, partition: int, start: int = 0) -> dict[str, Any]:
    return {"topicPartition": {"hash": 0, "topic": topic, "partition": partition}, "fromOffset": start}


def kafka_scan(rdd: int, topic: str, partitions: Sequence[int], end: int) -> Jvm:
    read = [Jvm("KafkaBatchInputPartition", offsetRange=offsets(topic, one)) for one in partitions]
    return Jvm(
        "MicroBatchScanExec",
        inputRDD=Jvm(id=rdd),
        end=Jvm(json=json.dumps({topic: {str(one): end for one in partitions}})),
        partitions=seq(*map(some, read)),
    )


def plan(*leaves: Jvm) -> Jvm:
    return Jvm("WriteExec", collectLeaves=seq(*leaves))


class Answers:
    """What Spark says; `later` is how many times a stage is asked for before it is complete."""

    partition_groups = False

    def __init__(
        self,
        jobs: Mapping[int, tuple[str, Sequence[int]]],
        stages: Mapping[int, tuple[Sequence[int], int]],
        tasks: Mapping[tuple[int, int], Sequence[tuple[int, float, float, str]]],
        graphs: Mapping[int, Mapping[str, Any]] | None = None,
        later: int = 0,
    ) -> None:
        self._jobs, self._stages, self._tasks, self._graphs = jobs, stages, tasks, graphs or {}
        self._later = later
        self.hidden: list[str] = []
        self.asked: list[int] = []

    def job_ids(self, group: str) -> list[int]:
        assert group == "run-1"
        return sorted(self._jobs, reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        self.asked.append(number)
        description, stages = self._jobs[number]
        return {"description": description, "stageIds": stages, "status": "RUNNING" if self._later else "SUCCEEDED"}

    def stages(self, number: int) -> list[dict[str, Any]]:
        if number not in self._stages:
            return []  # skipped
        rdds, count = self._stages[number]
        state = "ACTIVE" if self._later else "COMPLETE" if self._tasks[number, 0] else "SKIPPED"
        self._later = max(0, self._later - 1)
        attempts = sorted({attempt for stage, attempt in self._tasks if stage == number}, reverse=True)
        return [
            {"stageId": number, "attemptId": one, "status": state, "rddIds": rdds, "numTasks": count}
            for one in attempts
        ]

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        return [
            {
                "partitionId": number,
                "launchTime": 1_000_000 + start,
                "duration": took,
                "status": status,
                "taskMetrics": {"inputMetrics": {"recordsRead": number * 10}},
            }
            for number, start, took, status in self._tasks[stage, attempt]
        ]

    def graph(self, stage: int) -> Mapping[str, Any]:
        return self._graphs.get(stage) or graph({3: "DataSourceRDD", 4: "MapPartitionsRDD"}, [(3, 4)])

    def as_json(self, thing: Jvm) -> Any:
        return [{"offsetRange": one.get().offsetRange()} for one in thing.items()]

    def hide(self, kind: Any, field: str) -> None:
        self.hidden.append(field)


BATCH = "jobs.out<br/>id = 1<br/>runId = run-1<br/>batch = {}"
PLAN = plan(kafka_scan(3, "orders", [1, 0, 2], 100))
TASKS = {(20, 0): [(0, 5, 100, "SUCCESS"), (1, 5, 900, "SUCCESS"), (2, 110, 100, "SUCCESS")]}


def measured(monkeypatch: pytest.MonkeyPatch, answers: Answers, executed: Jvm = PLAN, **more: Any) -> Alignment | None:
    monkeypatch.setattr(SparkStatus, "of", lambda spark: answers)
    more = {"epoch": 7, "sources": [("orders", {"orders": {"1": 100, "0": 100, "2": 100}})], **more}
    return measure(None, executed, "run-1", 1_000.0, **more)  # type: ignore[arg-type]


def test_each_partition_s_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 3)}, TASKS)
    found = measured(monkeypatch, answers)
    assert found is not None
    assert [
        (one.partition, one.source, one.rows, one.started_ms, one.reached_ms, one.waited_ms) for one in found.partitions
    ] == [
        ("orders-0", "orders", 10, 5, 905, 0),
        ("orders-2", "orders", 20, 110, 210, 695),
        ("orders-1", "orders", 0, 5, 105, 800),
    ]
    assert (found.slowest, found.skew, found.unknown) == ("orders-0", 9.0, None)
    assert answers.hidden == ["executorKafkaParams"]


def test_only_this_epoch_s_jobs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {number: (BATCH.format(number), [number]) for number in range(2, 10)}
    jobs[8] = ("the user's own", [20])
    answers = Answers({**jobs, 7: (BATCH.format(7), [])}, {20: ([3, 4], 3)}, TASKS)
    found = measured(monkeypatch, answers)
    assert found is not None
    assert found.slowest == "orders-0"
    assert answers.asked == [9, 8, 7, 6]


def test_the_first_stage_that_read_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones, of a second output, read it again, or a copy of it."""
    jobs = {5: (BATCH.format(7), [21, 22]), 4: (BATCH.format(7), [19, 20])}
    again = {(19, 0): [], (22, 0): [(number, 5000, 1, "SUCCESS") for number in range(3)]}
    stages = {19: ([3, 4], 3), 20: ([3, 4], 3), 22: ([3, 4, 8], 3)}  # 19 is skipped
    found = measured(monkeypatch, Answers(jobs, stages, {**TASKS, **again}))
    assert found is not None
    assert found.partitions[0].reached_ms == 905


def test_a_batch_that_is_united_with_itself_reaches_each_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = graph({3: "DataSourceRDD", 4: "MapPartitionsRDD", 5: "UnionRDD"}, [(3, 4), (4, 5), (4, 5)])
    tasks = {(20, 0): [(number, number * 10, 100, "SUCCESS") for number in range(6)]}
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 6)}, tasks, {20: twice}))
    assert found is not None
    assert [one.reached_ms for one in found.partitions] == [120, 110, 100]


def test_a_partition_that_was_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed tasks do not count; in another attempt at the stage, only what was lost is read again."""
    tasks = {
        (20, 0): [(0, 5, 100, "SUCCESS"), (1, 5, 50, "FAILED"), (1, 60, 40, "SUCCESS"), (2, 110, 900, "KILLED")],
        (20, 1): [(0, 2000, 100, "SUCCESS"), (2, 2000, 100, "SUCCESS")],
    }
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 3)}, tasks))
    assert found is not None
    assert [(one.partition, one.reached_ms) for one in found.partitions] == [
        ("orders-2", 2100),
        ("orders-1", 105),
        ("orders-0", 100),
    ]


def test_two_sources_in_two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    both = plan(PLAN.collectLeaves().apply(0), kafka_scan(5, "ticks", [0], 40))
    answers = Answers(
        {4: (BATCH.format(7), [20, 21, 22])},
        {20: ([3, 4], 3), 21: ([5], 1), 22: ([6, 7], 2)},
        {**TASKS, (21, 0): [(0, 0, 20, "SUCCESS")], (22, 0): []},
        {21: graph({5: "DataSourceRDD"}, [])},
    )
    sources = [("ticks", {"ticks": {"0": 40}}), ("orders", {"orders": {"0": 100, "1": 100, "2": 100}})]
    found = measured(monkeypatch, answers, both, sources=sources)
    assert found is not None
    assert [(one.partition, one.source) for one in found.partitions] == [
        ("orders-0", "orders"),
        ("orders-2", "orders"),
        ("orders-1", "orders"),
        ("ticks-0", "ticks"),
    ]


def test_a_coalesced_scan_is_not_known_and_the_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    both = plan(PLAN.collectLeaves().apply(0), kafka_scan(5, "ticks", [0], 40))
    answers = Answers(
        {4: (BATCH.format(7), [20, 21])},
        {20: ([3, 4], 2), 21: ([5], 1)},
        {(20, 0): [(0, 5, 100, "SUCCESS"), (1, 5, 900, "SUCCESS")], (21, 0): [(0, 0, 20, "SUCCESS")]},
        {20: graph({3: "DataSourceRDD", 4: "CoalescedRDD"}, [(3, 4)]), 21: graph({5: "DataSourceRDD"}, [])},
    )
    sources = [("orders", {"orders": {"0": 100, "1": 100, "2": 100}}), ("ticks", {"ticks": {"0": 40}})]
    found = measured(monkeypatch, answers, both, sources=sources)
    assert found is not None
    assert [one.partition for one in found.partitions] == ["ticks-0"]
    assert found.unknown == "a task of source 'orders' does not read one partition"


def test_other_numbers_of_tasks_and_partitions_are_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 4)}, TASKS))
    assert found == Alignment((), unknown="a task of source 'orders' does not read one partition")


def test_a_scan_nobody_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([8], 3)}, TASKS))
    assert found == Alignment((), unknown="Spark does not know where source 'orders' was read")


def test_no_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers({4: (BATCH.format(7), [20])}, {}, {})
    assert measured(monkeypatch, answers, plan(Jvm("LocalTableScanExec"))) == Alignment(())
    assert not answers.asked


def test_spark_s_bookkeeping_runs_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 3)}, TASKS, later=3))
    assert found is not None
    assert found.slowest == "orders-0"


def test_a_stage_that_ran_before_the_epoch_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {(20, 0): [(0, -50, 20, "SUCCESS"), (1, -50, 30, "SUCCESS"), (2, -20, 30, "SUCCESS")]}
    found = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: ([3, 4], 3)}, tasks))
    assert found is not None
    assert [(one.started_ms, one.reached_ms) for one in found.partitions] == [(30, 60), (0, 30), (0, 20)]


def test_whatever_goes_wrong_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(alignment, "_complained", set())

    class Broken(Answers):
        def job_ids(self, group: str) -> list[int]:
            raise ConnectionError("the JVM is gone")

    for _ in range(3):
        assert measured(monkeypatch, Broken({}, {}, {})) is None
    assert caplog.text.count("the JVM is gone") == 1


# Names


def test_a_partition_split_between_tasks() -> None:
    ranges = [offsets("t", 0), offsets("t", 1, 50), offsets("t", 0, 500)]
    assert kafka_names(ranges) == ("t-0 from 0", "t-1", "t-0 from 500")


def test_adaptive_plans_are_looked_into() -> None:
    inside = plan(Jvm("ShuffleQueryStageExec", plan=plan(kafka_scan(3, "t", [0], 9), Jvm("ReusedExchangeExec"))))
    adaptive = plan(Jvm("AdaptiveSparkPlanExec", executedPlan=inside))
    scans, unknown = scans_of(Answers({}, {}, {}), adaptive, [("in", {"t": {"0": 9}})])  # type: ignore[arg-type]
    assert scans == [Scan(3, "in", ("t-0",))]
    assert not unknown


def test_sources_at_the_same_position_cannot_be_told_apart() -> None:
    sources = [("a", {"t": {"0": 9}}), ("b", {"t": {"0": 9}}), ("c", {"t": {"0": 8}})]
    both = plan(kafka_scan(3, "t", [0], 9), kafka_scan(4, "t", [0], 8))
    scans, _ = scans_of(Answers({}, {}, {}), both, sources)  # type: ignore[arg-type]
    assert [one.source for one in scans] == [None, "c"]


def test_partitions_without_names_are_numbered() -> None:
    numbered = Jvm(
        "MicroBatchScanExec", inputRDD=Jvm(id=3), end=Jvm(json="12"), partitions=seq(some(Jvm("RatePartition")), NONE)
    )
    files = Jvm("FileSourceScanExec", getStream=some(None), inputRDD=Jvm(id=4, getNumPartitions=2))
    nothing = Jvm("MicroBatchScanExec", inputRDD=Jvm(id=5), end=Jvm(json="12"), partitions=seq())
    table = Jvm("FileSourceScanExec", getStream=NONE)
    old = Jvm("RDDScanExec", getStream=some(None))
    scans, unknown = scans_of(Answers({}, {}, {}), plan(numbered, files, nothing, table, old), [("ticks", 12)])  # type: ignore[arg-type]
    assert scans == [Scan(3, "ticks", ("ticks #0", "ticks #1")), Scan(4, "ticks", ("ticks #0", "ticks #1"))]
    assert len(unknown) == 1


# State


def test_state_of_both_backends() -> None:
    """Reports as Spark 4.2 writes them, shortened."""
    common = {"numRowsTotal": 7, "numRowsUpdated": 3, "numRowsRemoved": 1, "numStateStoreInstances": 2}
    heap = {"operatorName": "stateStoreSave", "memoryUsedBytes": 900, **common}
    heap["customMetrics"] = {"loadedMapCacheHitCount": 4, "stateOnCurrentVersionSizeBytes": 500}
    rocks = {"operatorName": "dedupe", "memoryUsedBytes": 80_000, **common}
    rocks["customMetrics"] = {"rocksdbGetCount": 1, "rocksdbSstFileSize": 4000}
    first, second = state_sizes({"stateOperators": [heap, rocks]})
    assert (first.operator, first.rows, first.updated, first.removed, first.partitions) == (
        "stateStoreSave",
        7,
        3,
        1,
        2,
    )
    assert (first.backend, first.memory_bytes, first.state_bytes) == ("hashmap", 900, 500)
    assert (second.backend, second.memory_bytes, second.state_bytes) == ("rocksdb", 80_000, 4000)
    assert state_sizes({"stateOperators": []}) == state_sizes({}) == ()


def report(number: int, ran: bool = True) -> Jvm:
    took = {"triggerExecution": 5, **({"addBatch": 4} if ran else {})}
    return Jvm(batchId=number, json=json.dumps({"batchId": number, "durationMs": took}))


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([], None),
        ([report(5)], None),
        ([report(5), report(6, ran=False)], None),  # waits for data
        ([report(5), report(6, ran=False), report(6)], 6),
        ([report(5), report(6), report(7, ran=False)], 6),
        ([report(number) for number in range(14)], 6),
        ([report(5), report(7)], "never"),
        ([report(number) for number in range(100)], "never"),
    ],
)
def test_the_report_of_an_epoch(reports: list[Jvm], found: int | str | None) -> None:
    query: Any = type("Query", (), {"_jsq": Jvm(recentProgress=reports)})
    answer = progress_of(query, 6)
    if found == "never":
        assert answer == {}
    else:
        assert (answer and answer["batchId"]) == found


# Whether an epoch still reads


class Told:
    """Jobs by number, each with its description, status and stages; stages with their status and who feeds them."""

    def __init__(self, jobs: Mapping[int, tuple[str, str, list[int]]], stages: Mapping[int, tuple[str, int]]) -> None:
        self._jobs, self._stages = jobs, stages

    def job_ids(self, group: str) -> list[int]:
        assert group == "the run"
        return sorted(self._jobs, reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        description, status, stages = self._jobs[number]
        return {"description": description, "status": status, "stageIds": stages}

    def stages(self, number: int) -> list[dict[str, Any]]:
        return [{"stageId": number, "attemptId": 0, "status": self._stages[number][0]}]

    def graph(self, number: int) -> dict[str, Any]:
        return {"incomingEdges": [{"fromId": 1, "toId": 2}] * self._stages[number][1]}


@pytest.mark.parametrize(
    ("jobs", "stages", "reading"),
    [
        ({}, {}, True),  # Spark plans
        ({1: ("batch = 6", "SUCCEEDED", [1])}, {1: ("COMPLETE", 0)}, True),  # of the epoch before
        ({2: ("batch = 7", "RUNNING", [2])}, {2: ("ACTIVE", 0)}, True),
        ({2: ("batch = 7", "RUNNING", [2, 3])}, {2: ("ACTIVE", 0), 3: ("PENDING", 1)}, True),
        ({2: ("batch = 7", "RUNNING", [2, 3])}, {2: ("COMPLETE", 0), 3: ("ACTIVE", 1)}, False),
        ({2: ("batch = 7", "SUCCEEDED", [2])}, {2: ("COMPLETE", 0)}, False),
        ({2: ("batch = 7", "SUCCEEDED", [2]), 3: ("batch = 7", "RUNNING", [4])}, {4: ("PENDING", 0)}, True),
    ],
)
def test_an_epoch_reads_until_its_last_scan_is_over(
    jobs: Mapping[int, tuple[str, str, list[int]]], stages: Mapping[int, tuple[str, int]], reading: bool
) -> None:
    status: Any = Told(jobs, stages)
    assert is_reading(status, "the run", 7) is reading
