"""Commands to a running job: each is carried out whole, or refused and the job goes on; none is lost at its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config import Checkpoints
from penstock.engine import steering as module
from penstock.engine.steering import EndRequest, Steering, _half_drained
from penstock.errors import ConfigurationError, SavepointError
from penstock.events import Events
from penstock.savepoints.savepoint import Kind


class Clock:
    """Deadlines pass when the tests say so; whoever sleeps lets something happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.meanwhile = 0.0, list[Callable[[], None]]()
        self.slept: list[float] = []
        clock = self

        class Set:
            def __init__(self, seconds: float) -> None:
                self._at = clock.now + seconds

            def passed(self) -> bool:
                return clock.now >= self._at

        monkeypatch.setattr(module, "Deadline", Set)
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        assert len(self.slept) < 100, "it waits for ever"
        self.now += 1.0
        if self.meanwhile:
            self.meanwhile.pop(0)()


class Runner:
    def __init__(self, uid: str, log: list[str], completed: int | None = 4) -> None:
        self.plan, self.log = SimpleNamespace(uid=uid), log
        self.generation, self.alive, self.done, self.busy = 7, True, False, False
        self.error: BaseException | None = None
        self.completed = completed
        self.patience: Any = None
        self.fails: BaseException | None = None

    @property
    def progress(self) -> Any:
        return None if self.completed is None else SimpleNamespace(completed=self.completed)

    def hurry(self) -> None:
        self.log.append(f"hurry {self.plan.uid}")

    def shut(self) -> None:
        self.log.append(f"shut {self.plan.uid}")

    @contextlib.contextmanager
    def hold(self, patience: Any, *, final: bool) -> Iterator[str]:
        self.patience = patience
        self.log.append(f"hold {self.plan.uid} {final}")
        yield f"held {self.plan.uid}"
        self.log.append(f"go on {self.plan.uid}")

    def prepare_final(self) -> None:
        self.log.append(f"prepare {self.plan.uid}")
        if self.fails is not None:
            raise self.fails

    def emit_final(self) -> None:
        self.log.append(f"emit {self.plan.uid}")

    def at_end(self) -> str:
        return f"at end {self.plan.uid}"


class Job:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.clock = Clock(monkeypatch)
        self.limits = Checkpoints(storage="/checkpoints", timeout=10, interval=2)
        self.steering = Steering("payments", self.limits)
        self.runners = [Runner("b", self.log), Runner("a", self.log)]
        self.globals = SimpleNamespace(order=None, wanted=False, newest=0)
        self.events, self.emitted = Events(), list[dict[str, Any]]()
        self.events.listen(lambda event: self.emitted.append({**event, "time": 0}))
        self.spark: Any = object()
        self.taken: list[tuple[Any, ...]] = []
        self.fails: Exception | None = None
        monkeypatch.setattr(module, "Taker", self._taker)

    def begin(self) -> Steering:
        given: Any = self.runners
        all_of_them: Any = self.globals
        self.steering.begin(given, self.spark, self.events, all_of_them)
        return self.steering

    def _taker(self, name: str, spark: Any, hold: Any, *, mode: str) -> Any:
        assert (name, spark, mode) == ("payments", self.spark, "exactly_once")

        def take(where: str, kind: Kind, *, drained: bool = False, progress: Any) -> Any:
            with hold() as held:
                self.taken.append((where, kind, drained, progress, list(held)))
                if self.fails is not None:
                    raise self.fails
            queries = {"a": SimpleNamespace(epoch=4), "b": SimpleNamespace(epoch=5)}
            saved = SimpleNamespace(kind=kind, size=99, queries=queries, drained=drained)
            return SimpleNamespace(path=f"{where}/sp-1", savepoint=saved, held_ms=1.0, waited_ms=2.0, total_ms=3.0)

        return SimpleNamespace(take=take)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def told(step: Any) -> None:
    """Somebody who follows the progress."""


def announced(where: str = "/sp", *, kind: str = "native", drained: bool = False) -> dict[str, Any]:
    return {
        "event": "savepoint", "time": 0, "query": None, "path": f"{where}/sp-1", "kind": kind, "bytes": 99,
        "epochs": {"a": 4, "b": 5}, "drained": drained, "held_ms": 1.0, "waited_ms": 2.0, "total_ms": 3.0,
    }  # fmt: skip


# Before and after the job runs


def test_a_job_that_does_not_run_yet_can_be_stopped_and_nothing_else(job: Job) -> None:
    steering = job.steering
    assert (steering.name, steering.status()) == ("payments", {"queries": {}})
    assert steering.request is EndRequest.NONE
    assert not steering.wake.is_set()
    assert not steering.signalled
    commands: list[Callable[[], Any]] = [steering.savepoint, steering.checkpoint, steering.stop_with_savepoint]
    for command in commands:
        with pytest.raises(SavepointError, match="Job 'payments' does not run yet"):
            command()
    steering.stop()
    assert steering.request is EndRequest.STOP


@pytest.mark.parametrize(("error", "why"), [(None, "it has ended"), (OSError("full"), "it has failed")])
def test_a_job_that_has_ended_gives_no_savepoint(job: Job, error: Exception | None, why: str) -> None:
    steering = job.begin()
    steering.end(error)
    with pytest.raises(SavepointError, match=f"Job 'payments' gives no savepoint: {why}"):
        steering.savepoint()
    assert job.taken == []
    job.begin()
    assert steering.savepoint("/sp") == "/sp/sp-1", "another run of the same job"


def test_a_stop_never_takes_back_a_cancel(job: Job) -> None:
    steering, stops = job.steering, list[int]()
    steering.on_stop()
    steering.on_stop = lambda: stops.append(1)
    steering.cancel()
    assert steering.request is EndRequest.CANCEL
    steering.stop()
    assert steering.request is EndRequest.CANCEL
    assert steering.wake.is_set()
    assert stops == [1, 1]


def test_the_process_is_what_must_end_unless_the_job_was_stopped_before(job: Job) -> None:
    job.steering.shut_down()
    assert job.steering.signalled
    assert job.steering.request is EndRequest.STOP
    job.steering.shut_down()
    assert job.steering.signalled, "a second signal changes nothing"
    other = Steering("other", job.limits)
    other.stop()
    other.shut_down()
    assert not other.signalled


def test_the_status_of_each_query(job: Job) -> None:
    job.runners[0].completed = None
    job.runners[0].error, job.runners[0].alive, job.runners[0].done = OSError("full"), False, True
    job.runners.append(Runner("c", job.log, completed=0))
    job.begin()
    healthy = {"generation": 7, "running": True, "done": False, "error": None}
    assert job.steering.status() == {
        "queries": {
            "a": {"epoch": 4, **healthy},
            "b": {"epoch": None, "generation": 7, "running": False, "done": True, "error": "full"},
            "c": {"epoch": 0, **healthy},
        }
    }


# Savepoints


@pytest.mark.parametrize("order", [None, ["b", "a"]])
def test_a_savepoint_of_a_job_that_goes_on(job: Job, order: list[str] | None) -> None:
    job.globals.order = order
    assert job.begin().savepoint("/sp", kind="canonical", progress=told) == "/sp/sp-1"
    first, second = order or ["a", "b"]
    assert job.taken == [("/sp", Kind("canonical"), False, told, [f"held {first}", f"held {second}"])]
    assert job.log == [f"hold {first} False", f"hold {second} False", f"go on {second}", f"go on {first}"]
    assert job.emitted == [announced(kind="canonical")]
    assert job.steering.request is EndRequest.NONE
    patience = job.runners[0].patience
    job.clock.now = 9.9
    assert not patience.passed()
    job.clock.now = 10.0
    assert patience.passed(), "the checkpoint timeout"


def test_a_savepoint_goes_beside_the_checkpoint_and_is_native_unless_asked_otherwise(job: Job) -> None:
    job.begin().savepoint()
    job.steering.stop_with_savepoint()
    assert job.steering.request is EndRequest.STOP
    assert [given[:3] for given in job.taken] == [("/checkpoints/_savepoints", Kind.NATIVE, False)] * 2
    for command in (job.steering.savepoint, job.steering.stop_with_savepoint):
        with pytest.raises(ConfigurationError, match=r"^kind of savepoint"):
            command(kind="strange")


def test_savepoints_are_taken_one_after_the_other(job: Job) -> None:
    job.begin()
    with job.steering._alone():
        other = threading.Thread(target=job.steering.savepoint, daemon=True)
        other.start()
        other.join(0.05)
        assert job.taken == []
    other.join()
    assert len(job.taken) == 1


def test_a_folder_is_passed_on_as_an_address_or_as_a_path(job: Job, tmp_path: Path) -> None:
    directory = job.steering._directory
    for where in ("hdfs:///sp", "s3a://bucket/sp", "file:/sp", "file:///sp/", "FILE:///sp"):
        assert directory(where) == where
    relative = directory("sp")
    assert relative == str(Path.cwd() / "sp")
    assert Steering("job", Checkpoints(storage="hdfs:///X/"))._directory(None) == "hdfs:///X/_savepoints"


# Stopping with one


@pytest.mark.parametrize("cancel", [True, False])
def test_no_epoch_comes_after_the_savepoint_of_a_stop(job: Job, cancel: bool) -> None:
    path = job.begin().stop_with_savepoint("/sp", kind="canonical", cancel=cancel, progress=told)
    assert path == "/sp/sp-1"
    assert job.taken == [("/sp", Kind("canonical"), False, told, ["held a", "held b"])]
    assert job.log == ["hold a True", "hold b True", "shut a", "shut b", "go on b", "go on a"]
    assert job.steering.request is (EndRequest.CANCEL if cancel else EndRequest.STOP)
    assert job.emitted == [announced(kind="canonical")]


def test_a_stop_whose_savepoint_fails_leaves_the_job_running(job: Job) -> None:
    job.fails = SavepointError("The folder is full.")
    with pytest.raises(SavepointError, match="full"):
        job.begin().stop_with_savepoint()
    assert job.steering.request is EndRequest.NONE
    assert not any(step.startswith("shut") for step in job.log)
    assert job.emitted == []


class Drain:
    """A caller who waits for a drain, in a thread of its own."""

    def __init__(self, job: Job) -> None:
        self.answer: Future[str] = Future()
        job.begin()
        asked = threading.Event()
        job.steering.on_stop = asked.set
        threading.Thread(target=self._ask, args=(job,), daemon=True).start()
        assert asked.wait(30)

    def _ask(self, job: Job) -> None:
        try:
            path = job.steering.stop_with_savepoint("/sp", drain=True, kind="canonical", progress=told)
            self.answer.set_result(path)
        except BaseException as error:
            self.answer.set_exception(error)


def test_a_drain_is_answered_when_the_queries_have_come_to_rest(job: Job) -> None:
    drain = Drain(job)
    assert job.steering.request is EndRequest.STOP
    with pytest.raises(SavepointError, match="it is stopping"):
        job.steering._refuse_ended()
    job.steering.end(None)
    assert drain.answer.result(30) == "/sp/sp-1"
    assert job.log == ["prepare a", "prepare b", "emit a", "emit b"]
    assert job.taken == [("/sp", Kind("canonical"), True, told, ["at end a", "at end b"])]
    assert job.emitted == [announced(kind="canonical", drained=True)]


def test_a_drain_of_a_job_that_fails_meanwhile_is_refused(job: Job) -> None:
    drain = Drain(job)
    job.steering.end(OSError("full"))
    with pytest.raises(SavepointError, match="gives no savepoint: it failed: full"):
        drain.answer.result(30)
    assert job.log == []


def test_a_drain_of_a_job_that_ends_at_this_very_moment_is_refused(job: Job) -> None:
    """Its end looks for a drain that was asked for, and a drain for the end, under one lock."""
    steering = job.begin()

    @contextlib.contextmanager
    def late() -> Iterator[None]:
        steering._ended = "ended"
        yield

    steering._ending = late()  # type: ignore[assignment]
    with pytest.raises(SavepointError, match="it has ended"):
        steering.stop_with_savepoint("/sp", drain=True)
    assert steering.request is EndRequest.NONE


@pytest.mark.parametrize("known", [True, False])
def test_a_drain_that_fails_before_a_window_is_closed_says_why(job: Job, known: bool) -> None:
    drain = Drain(job)
    error = SavepointError("It cannot be held.") if known else OSError("full")
    job.runners[0].fails = error
    with contextlib.nullcontext() if known else pytest.raises(OSError, match="full"):
        job.steering.end(None)
    with pytest.raises(type(error)) as raised:
        drain.answer.result(30)
    assert raised.value is error


def test_of_a_drain_that_fails_half_way_the_job_and_the_cause_are_named(job: Job) -> None:
    drain = Drain(job)
    job.fails = SavepointError("The folder is full.")
    job.steering.end(None)
    with pytest.raises(SavepointError, match=r"Job 'payments' gives no savepoint, though the queries \['a', 'b'\]"):
        drain.answer.result(30)
    cause = OSError("full")
    assert _half_drained("payments", ["a"], cause).__cause__ is cause


# Checkpoints


def test_a_checkpoint_is_an_epoch_of_every_query(job: Job) -> None:
    a, b = job.runners[1], job.runners[0]

    def first() -> None:
        a.completed = 5

    def then() -> None:
        assert job.log == ["hurry a", "hurry b"]
        b.completed = 7

    job.clock.meanwhile = [first, then]
    assert job.begin().checkpoint() == 7
    assert job.clock.slept == [0.05, 0.05]


def test_a_query_with_nothing_to_read_is_not_waited_for(job: Job) -> None:
    """Two intervals and a second are enough to see it; one that is busy, or has none yet, has until the timeout."""
    job.runners[1].done = True
    assert job.begin().checkpoint() == 4
    assert job.clock.now == 5.0
    job.runners[0].busy = True
    with pytest.raises(SavepointError, match="Query 'b' has completed no checkpoint within"):
        job.steering.checkpoint()
    assert job.clock.now == 15.0
    job.runners[0].completed = 0
    job.runners[0].busy = False
    assert job.steering.checkpoint() == 4, "its first epoch is number 0"
    job.runners[0].completed = None
    with pytest.raises(SavepointError, match="Query 'b'"):
        job.steering.checkpoint()


def test_who_waits_for_a_checkpoint_learns_of_the_end_of_the_job(job: Job) -> None:
    job.clock.meanwhile = [lambda: job.steering.end(None)]
    with pytest.raises(SavepointError, match="it has ended"):
        job.begin().checkpoint()


def test_a_global_checkpoint_is_waited_for_where_there_are_any(job: Job) -> None:
    job.globals.wanted, job.globals.newest = True, 3
    a, b = job.runners[1], job.runners[0]

    def epochs() -> None:
        a.completed = b.completed = 5

    def checkpoint() -> None:
        job.globals.newest = 4

    job.clock.meanwhile = [epochs, lambda: None, checkpoint]
    assert job.begin().checkpoint() == 4
    assert job.clock.slept == [0.05] * 3


def test_a_job_that_reads_nothing_has_its_last_global_checkpoint(job: Job) -> None:
    job.globals.wanted, job.globals.newest = True, 3
    assert job.begin().checkpoint() == 3
    before = job.clock.now
    assert before == 10.0, "each of the two is seen to be idle"
    job.globals.newest = 0
    assert job.steering.checkpoint() == 0, "the first one does not come by itself"
    assert job.clock.now == before + 5.0 + 5.0 + 10.0, "two queries, and the checkpoint timeout"


def test_a_global_checkpoint_that_does_not_come_in_time_is_the_last_one(job: Job) -> None:
    job.globals.wanted, job.globals.newest = True, 3
    a = job.runners[1]

    def epoch() -> None:
        a.completed = 5

    job.clock.meanwhile = [epoch]
    assert job.begin().checkpoint() == 3
    assert job.clock.now >= 10.0


def test_a_global_checkpoint_of_a_job_that_ends_is_refused(job: Job) -> None:
    job.globals.wanted, job.globals.newest = True, 3
    for runner in job.runners:
        runner.done = True
    job.clock.meanwhile = [lambda: job.steering.end(None)]
    job.globals.newest = 0
    with pytest.raises(SavepointError, match="it has ended"):
        job.begin().checkpoint()
