"""A job beside the program that started it: how it ends, what it shows, and that what is shown is text."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import CheckpointInfo, Checkpoints, Job, PenstockError
from penstock.errors import ConfigurationError
from penstock.events import Events
from penstock.job.job import Callbacks, JobHandle, table
from tests.support.waiting import until


class RunningJob:
    """What a handle asks of a job: its `run` ends when it is stopped."""

    def __init__(self, error: Exception | None = None) -> None:
        self.name, self._error, self._stopped, self._callbacks = "<shop>", error, threading.Event(), Callbacks()
        self.events, self.began = Events(), threading.Event()

    def on_checkpoint_complete(self, function: Any) -> Any:
        self._callbacks.complete.append(function)

    def on_checkpoint_aborted(self, function: Any) -> Any:
        self._callbacks.aborted.append(function)

    def run(self, on_event: Any) -> None:
        with self._callbacks.following(self.events):
            self.began.set()
            self._stopped.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopped.set()

    def epoch(self, number: int, rows: int, error: str | None = None) -> None:
        about = {"query": "out", "epoch": number, "generation": 1}
        self.events.emit("precommitted", **about, rows=rows)
        if error is None:
            self.events.emit("completed", **about, seconds=0.5)
        else:
            self.events.emit("checkpoint_failed", **about, error=error)


@pytest.fixture
def started() -> Iterator[Callable[[RunningJob], JobHandle]]:
    made: list[RunningJob] = []

    def start(job: RunningJob) -> JobHandle:
        made.append(job)
        described: Any = job
        handle = JobHandle(described, None, lambda: "http://127.0.0.1:1/#code=x")
        assert job.began.wait(30)
        return handle

    yield start
    for job in made:
        job.stop()


def test_it_runs_beside_the_program(started: Callable[[RunningJob], JobHandle]) -> None:
    handle = started(RunningJob())
    assert handle.running
    assert handle.page == "http://127.0.0.1:1/#code=x"
    assert not handle.wait(0.01)
    handle.stop()
    assert not handle.running
    assert handle.page is None
    assert handle.wait()


def test_what_made_it_fail_is_raised(started: Callable[[RunningJob], JobHandle]) -> None:
    handle = started(RunningJob(PenstockError("<b>no</b>", safe="yes.", to_do="wait.")))
    with pytest.raises(PenstockError, match="no"):
        handle.stop()
    assert "failed: &lt;b&gt;no&lt;/b&gt;" in handle._repr_html_()


def test_an_interrupt_stops_it(started: Callable[[RunningJob], JobHandle]) -> None:
    handle = started(RunningJob())
    before = signal.getsignal(signal.SIGINT)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    assert handle.wait(60)
    assert signal.getsignal(signal.SIGINT) is before


def test_progress_is_the_newest_epoch_of_each_query(started: Callable[[RunningJob], JobHandle]) -> None:
    job = RunningJob()
    handle = started(job)
    job.epoch(3, 1_000)
    job.epoch(4, 2_000)
    until(lambda: handle.progress.get("out") == CheckpointInfo("out", 4, 1, 0.5, None, 2_000), "the epoch", 30)
    assert "epoch 4: 2,000 rows, complete after 0.50 s" in handle._repr_html_()
    job.epoch(5, 7, error="the <sink> is away")
    until(lambda: handle.progress["out"].epoch == 5, "the failure", 30)
    assert "epoch 5: the &lt;sink&gt; is away" in handle._repr_html_()
    assert "&lt;shop&gt;" in handle._repr_html_()
    assert "<sink>" not in handle.progress["out"]._repr_html_()


def test_everything_in_a_table_is_text() -> None:
    shown = table("<script>", [("<a>", '"&')])
    assert "<script>" not in shown
    assert "<a>" not in shown
    assert "&quot;&amp;" in shown


def test_the_cell_shows_it_again_and_again(
    started: Callable[[RunningJob], JobHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    place = SimpleNamespace(update=drawn.append)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda shown, display_id: place))
    handle = started(RunningJob())
    assert not handle.wait(0.01)
    handle.stop()
    assert drawn
    assert set(drawn) == {handle}


def test_a_job_starts_once_and_shows_itself() -> None:
    job = Job("shop", checkpoints=Checkpoints(storage="s3://user:secret@bucket/<b>"))
    shown = job._repr_html_()
    assert "&lt;b&gt;/shop" in shown
    assert "secret" not in shown
    handle = job.start()
    with pytest.raises(ConfigurationError, match="writes nothing"):
        handle.wait(60)
    with pytest.raises(ConfigurationError, match="was started before") as raised:
        job.start()
    assert "describe it again" in str(raised.value)


def test_a_saved_notebook_keeps_no_secret() -> None:
    shown = table("job shop", [("state", "failed: postgresql://u:hunter2@db/shop, password=geheim")])
    assert "postgresql://u:***@db/shop" in shown
    assert "hunter2" not in shown
    assert "geheim" not in shown
