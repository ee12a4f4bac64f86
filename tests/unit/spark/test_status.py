"""From what Spark reports of jobs, stages and tasks to the cut of each task that read rows.

The answers here have the shape of Spark's; `tests/integration/test_checkpoint_record.py` asks Spark itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.checkpoint.record import Alignment
from penstock.engine.observer import progress_of, state_sizes
from penstock.spark.query import SparkStatus, is_reading, measure

EPOCH = 7
BATCH = "jobs.out<br/>id = 1<br/>runId = run-1<br/>batch = {}"
TASKS = {(20, 0): [(0, 5, 100, "SUCCESS"), (1, 5, 900, "SUCCESS"), (2, 110, 100, "SUCCESS")]}


class Answers:
    """What Spark reports: jobs with their stages, stages with the RDDs they compute, tasks by stage and attempt.
    `later` is how many times the jobs are asked for before they have ended."""

    def __init__(
        self,
        jobs: Mapping[int, tuple[str, Sequence[int]]],
        stages: Mapping[int, Sequence[int]],
        tasks: Mapping[tuple[int, int], Sequence[tuple[int, float, float, str]]],
        later: int = 0,
        shuffled: Sequence[int] = (),
    ) -> None:
        self._jobs, self._stages, self._tasks = jobs, stages, tasks
        self._later, self._shuffled = later, shuffled
        self.asked: list[int] = []

    def job_ids(self, group: str) -> list[int]:
        assert group == "run-1"
        return sorted(self._jobs, reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        self.asked.append(number)
        description, stages = self._jobs[number]
        state = "RUNNING" if self._later else "SUCCEEDED"
        self._later = max(0, self._later - 1)
        return {"description": description, "stageIds": stages, "status": state}

    def attempts(self, stage: int) -> list[dict[str, Any]]:
        if stage not in self._stages:
            return []  # skipped
        read = 0 if stage in self._shuffled else 30
        numbers = sorted({attempt for number, attempt in self._tasks if number == stage})
        return [
            {
                "stageId": stage,
                "attemptId": number,
                "status": "COMPLETE" if self._tasks[stage, 0] else "SKIPPED",
                "rddIds": self._stages[stage],
                "inputRecords": read,
            }
            for number in numbers
        ]

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        return [
            {
                "partitionId": number,
                "launchTime": 1_000_000 + start,
                "duration": took,
                "status": state,
                "taskMetrics": {"inputMetrics": {"recordsRead": number * 10}},
            }
            for number, start, took, state in self._tasks[stage, attempt]
        ]


def measured(monkeypatch: pytest.MonkeyPatch, answers: Answers, *uids: str) -> Alignment:
    monkeypatch.setattr(SparkStatus, "of", lambda spark: answers)
    return measure(None, "run-1", 1_000.0, epoch=EPOCH, uids=uids or ("orders",))  # type: ignore[arg-type]


def test_each_partition_s_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    alignment = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: [3, 4]}, TASKS))
    assert [
        (cut.partition, cut.source, cut.rows, cut.started_ms, cut.reached_ms, cut.waited_ms)
        for cut in alignment.partitions
    ] == [
        ("orders #1", "orders", 10, 5, 905, 0),
        ("orders #2", "orders", 20, 110, 210, 695),
        ("orders #0", "orders", 0, 5, 105, 800),
    ]
    assert (alignment.slowest, alignment.skew, alignment.unknown) == ("orders #1", 9.0, None)


def test_only_this_epoch_s_jobs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {number: (BATCH.format(number), [number]) for number in range(2, 10)}
    jobs[8] = ("the user's own", [20])
    answers = Answers({**jobs, 7: (BATCH.format(7), [])}, {20: [3, 4]}, TASKS)
    alignment = measured(monkeypatch, answers)
    assert alignment.slowest == "orders #1"
    assert answers.asked == [9, 8, 7, 6]


def test_the_first_stage_that_read_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones, of a second output, read it again, or a copy of it."""
    jobs = {5: (BATCH.format(7), [21, 22]), 4: (BATCH.format(7), [19, 20])}
    again = {(19, 0): [], (22, 0): [(number, 5000, 1, "SUCCESS") for number in range(3)]}
    stages = {19: [3, 4], 20: [3, 4], 22: [3, 4, 8]}  # 19 is skipped
    alignment = measured(monkeypatch, Answers(jobs, stages, {**TASKS, **again}))
    assert alignment.partitions[0].reached_ms == 905


def test_a_partition_that_was_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed tasks do not count; in another attempt at the stage, only what was lost is read again."""
    tasks = {
        (20, 0): [(0, 5, 100, "SUCCESS"), (1, 5, 50, "FAILED"), (1, 60, 40, "SUCCESS"), (2, 110, 900, "KILLED")],
        (20, 1): [(0, 2000, 100, "SUCCESS"), (2, 2000, 100, "SUCCESS")],
    }
    alignment = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: [3, 4]}, tasks))
    assert [(cut.partition, cut.reached_ms) for cut in alignment.partitions] == [
        ("orders #2", 2100),
        ("orders #0", 105),
        ("orders #1", 100),
    ]


def test_two_sources_in_two_stages_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(
        {4: (BATCH.format(7), [20, 21, 22])},
        {20: [3, 4], 21: [5], 22: [6, 7]},
        {**TASKS, (21, 0): [(0, 0, 20, "SUCCESS")], (22, 0): [(0, 950, 20, "SUCCESS")]},
        shuffled=[22],
    )
    alignment = measured(monkeypatch, answers, "ticks", "orders")
    assert [(cut.partition, cut.source) for cut in alignment.partitions] == [
        ("stage 1 #1", None),
        ("stage 1 #2", None),
        ("stage 1 #0", None),
        ("stage 2 #0", None),
    ]


def test_no_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers({4: (BATCH.format(7), [20])}, {20: [3, 4]}, TASKS, shuffled=[20])
    assert measured(monkeypatch, answers) == Alignment((), unknown="Spark reports no task that read rows")


def test_spark_s_bookkeeping_runs_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    alignment = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: [3, 4]}, TASKS, later=3))
    assert alignment.slowest == "orders #1"


def test_a_stage_that_ran_before_the_epoch_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {(20, 0): [(0, -50, 20, "SUCCESS"), (1, -50, 30, "SUCCESS"), (2, -20, 30, "SUCCESS")]}
    alignment = measured(monkeypatch, Answers({4: (BATCH.format(7), [20])}, {20: [3, 4]}, tasks))
    assert [(cut.started_ms, cut.reached_ms) for cut in alignment.partitions] == [(30, 60), (0, 30), (0, 20)]


# State


class Jvm:
    """A JVM object: methods that answer."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return lambda: self.__dict__["_answers"][name]


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


class Progress:
    """Jobs by number, each with its description, status and stages; stages with their status."""

    def __init__(self, jobs: Mapping[int, tuple[str, str, list[int]]], stages: Mapping[int, str]) -> None:
        self._jobs, self._stages = jobs, stages

    def job_ids(self, group: str) -> list[int]:
        assert group == "the run"
        return sorted(self._jobs, reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        description, status, stages = self._jobs[number]
        return {"description": description, "status": status, "stageIds": stages}

    def attempts(self, stage: int) -> list[dict[str, Any]]:
        return [{"stageId": stage, "attemptId": 0, "status": self._stages[stage]}]


@pytest.mark.parametrize(
    ("jobs", "stages", "reading"),
    [
        ({}, {}, True),  # Spark plans
        ({1: ("batch = 6", "SUCCEEDED", [1])}, {1: "COMPLETE"}, True),  # of the epoch before
        ({2: ("batch = 7", "RUNNING", [2])}, {2: "ACTIVE"}, True),
        ({2: ("batch = 7", "RUNNING", [2, 3])}, {2: "ACTIVE", 3: "PENDING"}, True),
        ({2: ("batch = 7", "RUNNING", [2, 3])}, {2: "COMPLETE", 3: "ACTIVE"}, False),
        ({2: ("batch = 7", "SUCCEEDED", [2])}, {2: "COMPLETE"}, False),
        ({2: ("batch = 7", "SUCCEEDED", [2]), 3: ("batch = 7", "RUNNING", [4])}, {4: "PENDING"}, True),
    ],
)
def test_an_epoch_reads_until_its_last_scan_is_over(
    jobs: Mapping[int, tuple[str, str, list[int]]], stages: Mapping[int, str], reading: bool
) -> None:
    answers: Any = Progress(jobs, stages)
    assert is_reading(answers, "the run", 7) is reading
