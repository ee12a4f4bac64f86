"""How far long work is: what is counted, what is told, and on which way it comes to whoever waits."""

from __future__ import annotations

import io
import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import output as outputs
from penstock.cli import program
from penstock.cli.output import (
    Display,
    Output,
    ProgressDisplay,
    number_text,
    short_duration_text,
    size_text,
    step_text,
)
from penstock.cli.program import Start, show_restore
from penstock.cli.run import show_start
from penstock.errors import PreCommitFailed
from penstock.logs import plain_text
from penstock.ops.process.registry import Entry, Registry, State
from penstock.ops.server.client import Client
from penstock.progress import Counter, Step, silent, throttled
from penstock.savepoints import savepoint
from penstock.savepoints.savepoint import Kind, Savepoint
from penstock.spark_state.work_session import count_tasks, tell_tasks
from penstock.storage.local import LocalTree
from tests.support.fake_job import Steered, served
from tests.support.waiting import until

ID = "ab" * 16


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_travels_as_json() -> None:
    step = Step("prüfen", 3, 12, "bytes")
    assert json.loads(step.to_json()) == {"what": "prüfen", "done": 3, "total": 12, "unit": "bytes"}
    assert step.to_json().isascii()
    assert "\n" not in step.to_json()
    assert Step.of(step.to_json()) == Step.of(asdict(step)) == step
    assert Step.of({"done": 1, "total": 2, "unit": "files"}) == Step("working", 1, 2, "files")


@pytest.mark.parametrize(
    "body", [None, "", "{", "7", "[]", {}, {"done": "x", "total": 1, "unit": "b"}, {"done": 1}, "[" * 9999]
)
def test_what_is_no_step_is_none(body: object) -> None:
    assert Step.of(body) is None


def test_a_counter_tells_its_beginning_and_its_end() -> None:
    told: list[Step] = []
    counter = Counter(told.append, "copying", 5, "files")
    threads = [threading.Thread(target=counter.add) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[0] == Step("copying", 0, 5, "files")
    assert told[-1] == Step("copying", 5, 5, "files")
    Counter(told.append, "nothing", 0, "files")
    assert told[-1].what == "copying"


def test_throttled_passes_on_what_is_new_or_complete() -> None:
    told: list[Step] = []
    clock = Clock()
    tell = throttled(told.append, 1.0, clock)
    for done in range(4):
        tell(Step("copying", done, 4, "files"))
    assert [step.done for step in told] == [0]
    clock.now += 1.5
    tell(Step("copying", 3, 4, "files"))
    tell(Step("checking", 0, 9, "bytes"))
    tell(Step("checking", 9, 9, "bytes"))
    assert [(step.what, step.done) for step in told] == [
        ("copying", 0),
        ("copying", 3),
        ("checking", 0),
        ("checking", 9),
    ]


def test_trees_tell_what_they_copy_check_and_sync(tmp_path: Path) -> None:
    source, target = LocalTree(tmp_path / "from"), LocalTree(tmp_path / "to")
    for number in range(3):
        source.put(f"state/{number}", b"x" * 10)
    told: list[Step] = []
    target.take(source, {name: name for name in source.files()}, told.append)
    assert told[-1] == Step("copying", 3, 3, "files")
    assert target.digests(target.files(), told.append).keys() == source.files().keys()
    assert told[-1] == Step("checking", 30, 30, "bytes")
    target.sync_all(told.append)
    assert told[-1] == Step("syncing", 3, 3, "files")


def test_a_savepoint_is_checked_with_progress(tmp_path: Path) -> None:
    folder = LocalTree(tmp_path)
    folder.put("queries/out/spark/metadata", b"{}")
    files = {name: (size, folder.digest(name)) for name, size in folder.files().items()}
    saved = Savepoint("3f2a9c41d07e", Kind.NATIVE, "payments", 1.5, "0.2.0", "4.2.0", {}, files)
    told: list[Step] = []
    savepoint.verify(folder, saved, told.append)
    assert told[-1] == Step("checking", 2, 2, "bytes")


class Tracker:
    """Spark's, with two jobs: one over, with a stage it had no need of, and one that runs."""

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return [1, 2, 3]

    def getJobInfo(self, number: int) -> Any:  # noqa: N802
        jobs = {
            1: SimpleNamespace(status="SUCCEEDED", stageIds=[10, 11]),
            2: SimpleNamespace(status="RUNNING", stageIds=[12, 13, 14]),
        }
        return jobs.get(number)  # of the third nothing is known any more

    def getStageInfo(self, number: int) -> Any:  # noqa: N802
        tasks = {10: (4, 0), 11: (4, 4), 12: (4, 4), 13: (4, 1)}
        return (
            SimpleNamespace(numTasks=tasks[number][0], numCompletedTasks=tasks[number][1]) if number in tasks else None
        )


def test_tasks_that_are_done_are_counted() -> None:
    assert count_tasks(Tracker(), "g") == 9


class Context:
    """As much of a SparkContext as is asked."""

    def __init__(self, tracker: Any) -> None:
        self.properties: dict[str, Any] = {"spark.job.description": "mine"}
        self._tracker = tracker

    def getLocalProperty(self, key: str) -> Any:  # noqa: N802
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: Any) -> None:  # noqa: N802
        self.properties[key] = value

    def statusTracker(self) -> Any:  # noqa: N802
        return self._tracker


def test_spark_s_tasks_are_told_while_it_works_and_its_properties_put_back() -> None:
    told: list[Step] = []
    context = Context(Tracker())
    with tell_tasks(SimpleNamespace(sparkContext=context), told.append, "writing state"):  # type: ignore[arg-type]
        assert context.properties["spark.jobGroup.id"].startswith("penstock-")
        until(lambda: bool(told), "a step")
    assert told[-1] == Step("writing state", 9, 0, "tasks")
    assert context.properties == {"spark.job.description": "mine", "spark.jobGroup.id": None}


def test_a_tracker_that_fails_once_harms_nothing() -> None:
    class Failing(Tracker):
        failed = False

        def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
            if not self.failed:
                self.failed = True
                raise OSError("no answer")
            return super().getJobIdsForGroup(group)

    told: list[Step] = []
    tracker = Failing()
    work: Any = SimpleNamespace(sparkContext=Context(tracker))
    with tell_tasks(work, told.append, "writing state"):
        until(lambda: bool(told), "a step")
    assert tracker.failed


def test_nobody_waits_and_nothing_is_looked_at() -> None:
    with tell_tasks(None, silent, "writing state"):  # type: ignore[arg-type]
        pass


# On its way to whoever waits


def test_a_poll_carries_it_beside_the_body() -> None:
    job = Steered()
    job.step = Step("checking", 31, 124, "bytes")
    job.gate.clear()
    with served(job) as running:
        told: list[Step] = []
        client = Client(str(running.serving.address), running.entry.token)
        path = f"/jobs/{running.id}/savepoints"

        def tell(step: Step) -> None:
            told.append(step)
            job.gate.set()

        assert client.perform(path, {}, path, progress=tell)["location"]
        assert told[0] == job.step


def test_the_body_of_a_poll_is_flink_s_and_nothing_else() -> None:
    job = Steered()
    job.step = Step("checking", 31, 124, "bytes")
    job.gate.clear()
    with served(job) as running:
        _, asked = running.ask("POST", f"/jobs/{running.id}/stop")
        path = f"/v1/jobs/{running.id}/savepoints/{asked['request-id']}"
        assert running.ask("GET", path) == (200, {"status": {"id": "IN_PROGRESS"}, "operation": None})
        job.gate.set()
        until(lambda: running.ask("GET", path)[1]["operation"] is not None, "its end")


def test_a_restore_is_told_to_the_registry_until_the_job_runs() -> None:
    with served() as job:
        job.events.emit("restoring", query=None, **asdict(Step("copying", 1, 3, "files")))
        assert Step.of(job.entry.progress) == Step("copying", 1, 3, "files")
        assert job.entry.public()["progress"]["done"] == 1
        job.events.emit("restoring", query=None, what="nonsense")
        assert Step.of(job.entry.progress) == Step("copying", 1, 3, "files")
        job.events.emit("started", query="out", generation=4)
        assert job.entry.progress is None


# Shown


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120, color_system=None), file


def test_a_terminal_has_a_bar_with_amounts_and_times() -> None:
    screen, file = console(terminal=True)
    with ProgressDisplay("Savepoint of payments", screen) as display:
        display(Step("checking", 3_100_000, 12_400_000, "bytes"))
        display._bar.refresh()
        display.describe("Stopping payments")
        display._bar.refresh()
    shown = file.getvalue()
    assert "Savepoint of payments" in shown
    assert "checking: 3.1 MB of 12.4 MB (25 %)" in shown
    assert "0:00:0" in shown
    assert "Stopping payments" in shown


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    screen, file = console(terminal=False)
    with ProgressDisplay("Savepoint of [b]payments", screen) as display:
        for done in range(6):
            display(Step("copying", done, 10, "files"))
            clock.now += 4
    assert file.getvalue().splitlines() == [
        "Savepoint of [b]payments: copying: 3 of 10 files (30 %), 12s, about 28s left",
    ]


def test_the_rest_is_estimated_from_the_pace_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(outputs, "LINE_SECONDS", 0.0)
    screen, file = console(terminal=False)
    with ProgressDisplay("Savepoint", screen) as display:
        for what, done, total in (("copying", 0, 8), ("copying", 2, 8), ("copying", 4, 8)):
            display(Step(what, done, total, "files"))
            clock.now += 10
        for done in (10, 20, 40, 100):  # another step goes at another pace, of what was done since it was first seen
            display(Step("checking", done, 100, "files"))
            clock.now += 10
    assert [line.partition(" %)")[2] for line in file.getvalue().splitlines()] == [
        ", 0s",
        ", 10s",  # too early to say
        ", 20s, about 20s left",
        ", 0s",
        ", 10s",
        ", 20s, about 30s left",
        ", 30s",
    ]


def test_programs_are_shown_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Output.choose(as_json=True).progress("Savepoint") as display:
        display(Step("copying", 1, 2, "files"))
        display.describe("x")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step("copying", 1, 2000, "files"), "copying: 1 of 2,000 files (0 %)"),
        (Step("writing state", 1200, 0, "tasks"), "writing state: 1,200 tasks"),
        (Step("checking", 999, 2_500_000_000, "bytes"), "checking: 999 bytes of 2.5 GB (0 %)"),
    ],
)
def test_a_step_in_words(step: Step, text: str) -> None:
    assert step_text(step) == text


def test_numbers_in_words() -> None:
    assert [size_text(size) for size in (0, 999, 1000, 12_345_678)] == ["0 bytes", "999 bytes", "1.0 kB", "12.3 MB"]
    assert [short_duration_text(ms) for ms in (0.4, 48, 1200, 61_000)] == ["0 ms", "48 ms", "1.2 s", "1m 1s"]
    assert [number_text(number) for number in (0, 0.25, 7, 12345.6)] == ["0", "0.2", "7", "12,346"]
    assert plain_text("a\x1b[31mb\nc") == "a�[31mb\nc"


class Shown(Display):
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.texts: list[str] = []

    def __call__(self, step: Step) -> None:
        self.steps.append(step)

    def describe(self, text: str) -> None:
        self.texts.append(text)


def test_a_start_shows_its_state_and_its_restore() -> None:
    shown = Shown()
    show_start(
        shown,
        Entry(ID, "payments", State.CREATED, progress={"what": "copying", "done": 1, "total": 2, "unit": "files"}),
    )
    show_start(shown, Entry(ID, "payments", State.RUNNING))
    assert shown.texts == ["Starting payments: CREATED", "Starting payments: RUNNING"]
    assert shown.steps == [Step("copying", 1, 2, "files")]


def test_a_restore_is_followed_through_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_LOOK_SECONDS", 0.01)
    screen, file = console(terminal=False)
    monkeypatch.setattr(outputs, "LINE_SECONDS", 0.0)

    monkeypatch.setattr(Output, "_console", lambda _, *, stderr: screen)
    registry = Registry()
    with show_restore(Start(ID, "job.py", restores=True)):
        registry.put(Entry(ID, "payments", State.CREATED, progress=asdict(Step("copying", 1, 2, "files"))))
        until(lambda: "copying: 1 of 2 files" in file.getvalue(), "a line")
        registry.put(Entry(ID, "payments", State.RUNNING))
        until(
            lambda: not any(thread.name == "penstock-restore" for thread in threading.enumerate()), "the thread's end"
        )
    assert file.getvalue().startswith("Restoring payments: copying")


def test_a_savepoint_that_fails_after_progress_says_why() -> None:
    job = Steered()
    job.step, job.error = Step("copying", 1, 2, "files"), PreCommitFailed("It broke.")
    with served(job) as running:
        path = f"/jobs/{running.id}/savepoints"
        with pytest.raises(PreCommitFailed, match="It broke"):
            Client(str(running.serving.address), running.entry.token).perform(path, {}, path, progress=lambda _: None)
