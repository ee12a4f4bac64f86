"""The schedule of a drill, the processes it strikes, and the input of its calm run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import SparkLog
from penstock.drill.run import STEPS, TARGETS, Ran, Schedule, copy_input, kind_of, same_cuts
from penstock.storage.local import LocalStorage

pytestmark = pytest.mark.unit

ALL = ("kill", "stop", "step", "restart")


def drawn(seed: int, kinds: tuple[str, ...] = ALL) -> tuple[dict[str, int], list[object]]:
    schedule = Schedule(seed, kinds)
    return schedule.steps, list(itertools.islice(schedule, 200))


def test_a_seed_draws_the_same_faults_again() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("kind", ["kill", "stop", "restart"])
def test_only_the_kinds_that_are_asked_for_are_drawn(kind: str) -> None:
    steps, faults = Schedule(1, [kind]).steps, list(itertools.islice(Schedule(1, [kind]), 50))
    assert not steps
    assert {fault.kind for fault in faults} == {kind}
    assert all((fault.lasts > 0) is (kind == "stop") for fault in faults)


def test_steps_alone_strike_once_each_and_at_steps_that_every_job_passes(tmp_path: Path) -> None:
    schedule = Schedule(3, ["step"])
    assert list(schedule) == []
    environment = schedule.environment(tmp_path / "once")
    rules = failpoints.parse(environment[failpoints.VARIABLE])
    assert set(rules) == set(schedule.steps) <= set(STEPS) <= set(failpoints.POINTS)
    assert Path(environment[failpoints.ONCE]).is_dir()
    assert {failpoints.POINTS[name] for name in STEPS} == {"driver", "worker"}


def test_every_kind_of_process_is_looked_for_in_an_order_of_the_seed() -> None:
    orders = {tuple(fault.targets) for fault in itertools.islice(Schedule(5, ["kill"]), 200)}
    assert {order[0] for order in orders} == set(TARGETS)
    assert all(sorted(order) == sorted(TARGETS) for order in orders)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (b"/usr/lib/jvm/bin/java\0-cp\0/spark\0org.apache.spark.deploy.SparkSubmit", "jvm"),
        (b"/java/bin/java\0org.apache.spark.executor.CoarseGrainedExecutorBackend\0--driver-url", "executor"),
        (b"/venv/bin/python\0-m\0penstock.spark.python_daemon", "worker"),
        (b"/venv/bin/python\0-m\0pyspark.daemon\0pyspark.worker", "worker"),
        (b"/bin/bash\0spark-submit", "other"),
        (b"", "other"),
    ],
)
def test_processes_are_known_by_their_command(command: bytes, kind: str) -> None:
    assert kind_of(command) == kind


def checkpoint(folder: Path, offsets: list[str]) -> SparkLog:
    for name in (layout.OFFSETS, layout.COMMITS):
        (folder / name).mkdir(parents=True)
    for epoch, offset in enumerate(offsets):
        metadata = json.dumps({"batchWatermarkMs": epoch * 1000, "batchTimestampMs": 5, "conf": {}})
        (folder / layout.offsets(epoch)).write_text(f"v1\n{metadata}\n{offset}")
        (folder / layout.commits(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return SparkLog(LocalStorage(folder))


def test_the_calm_run_begins_where_the_other_began_and_ends_where_it_ended(tmp_path: Path) -> None:
    checkpoint(tmp_path / "from", ['{"next":10}', '{"next":20}', '{"next":30}'])
    source = tmp_path / "from" / layout.source(0)
    source.mkdir(parents=True)
    (source / "0").write_text("began here")
    copy_input(tmp_path / "from", tmp_path / "to", 2)
    barrier = SparkLog(LocalStorage(tmp_path / "to")).barrier(0)
    assert barrier is not None
    assert barrier.offsets == ({"next": 30},) or barrier.offsets == ('{"next":30}',)
    assert barrier.metadata["batchWatermarkMs"] == 0
    assert (tmp_path / "to" / layout.source(0) / "0").read_text() == "began here"
    assert json.loads((tmp_path / "to" / layout.QUERY_ID).read_text())["id"]
    assert not (tmp_path / "to" / layout.COMMITS).exists()


def test_epochs_are_cut_alike_only_where_all_positions_are_the_same(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "a", ["1", "2"])
    assert same_cuts(first, checkpoint(tmp_path / "b", ["1", "2"]))
    assert not same_cuts(first, checkpoint(tmp_path / "c", ["1", "3"]))
    assert not same_cuts(first, checkpoint(tmp_path / "d", ["2"]))


def test_a_run_knows_the_newest_epoch_of_each_query_and_what_a_timeline_shows() -> None:
    ran = Ran(begun=100.0)
    for number, event in enumerate(("started", "completed", "decided", "completed")):
        ran.events.append({"time": 100.0 + number, "event": event, "query": "out", "epoch": number})
    assert ran.completed() == {"out": 3}
    assert [(event["event"], event["at"]) for event in ran.to_dict()["events"]] == [
        ("started", 0.0), ("completed", 1.0), ("completed", 3.0),
    ]  # fmt: skip
