"""The drop-in without Spark: who runs the job, and what is left when a query starts again or ends."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.ledger import Ledger
from penstock.contracts.sink import Committer, SinkScope
from penstock.engine.coordinator import Coordinator
from penstock.errors import Superseded, SystemUnavailable
from penstock.job import dropin
from penstock.job.dropin import ExactlyOnce, exactly_once
from penstock.ops import attach
from penstock.storage.local import LocalStorage
from tests.support.memory_sink import MemorySink


class Conf:
    def get(self, name: str, default: str) -> str:
        return default


class Session:
    """As much of a Spark session as a drop-in looks at."""

    conf, version = Conf(), "4.2.0"
    sparkContext = SimpleNamespace(master="local[2]")  # noqa: N815 - Spark's name


class Execution:
    """A run of a query."""

    def __init__(self, location: str) -> None:
        self.location, self.id, self.active = location, "run-1", True

    def resolvedCheckpointRoot(self) -> str:  # noqa: N802 - Spark's name
        return self.location

    def runId(self) -> str:  # noqa: N802 - Spark's name
        return self.id

    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self.active


class CountedSink(MemorySink):
    """Knows which of its committers are open."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Committer] = []

    def open_committer(self, scope: SinkScope) -> Committer:
        made = super().open_committer(scope)
        made.close = lambda: self.held.remove(made) if made in self.held else None  # type: ignore[method-assign]
        self.held.append(made)
        return made


class Program:
    """A program with a drop-in, whose query runs no batch to its end: what is asked here is asked before."""

    def __init__(self, folder: Path, told: bool = True) -> None:
        location = f"file://{folder}"
        self.sink, self.execution = CountedSink(), Execution(location)
        spark: Any = Session()
        self.function = exactly_once(self.sink, uid="out", checkpoint=location if told else None, spark=spark)
        self.function._execution = lambda: self.execution  # type: ignore[method-assign]

    def batch(self, run: str, epoch: int = 0) -> None:
        self.execution.id = run
        frame: Any = None
        self.function(frame, epoch)

    @property
    def generation(self) -> int:
        assert self.function._coordinator is not None
        return self.function._coordinator.generation


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that got as far as being run; a query that has not recovered does it first."""
    ran: list[int] = []

    def run(self: Coordinator, frame: Any, epoch: int, jobs: Any) -> None:
        if self._resume is None:
            self.recover(query_running=True)
        ran.append(epoch)

    monkeypatch.setattr(Coordinator, "_run_epoch", run)
    return ran


@pytest.mark.parametrize("told", [True, False])
def test_a_superseded_program_that_starts_its_query_again_does_not_take_the_job_back(
    tmp_path: Path, passed: list[int], told: bool
) -> None:
    old = Program(tmp_path, told)
    old.batch("run-1")
    new = Program(tmp_path, told)
    new.batch("run-1")
    for run in ("run-2", "run-3"):
        with pytest.raises(Superseded):
            old.batch(run)
    assert Ledger(LocalStorage(tmp_path / "_penstock")).newest_generation() == new.generation


def test_a_program_that_starts_its_query_again_goes_on_where_nobody_took_over(
    tmp_path: Path, passed: list[int]
) -> None:
    program = Program(tmp_path)
    program.batch("run-1", 0)
    program.batch("run-2", 1)
    assert passed == [0, 1]
    assert program.generation == 2


def test_connections_of_a_run_are_closed_when_the_next_begins(tmp_path: Path, passed: list[int]) -> None:
    program = Program(tmp_path)
    for run in ("run-1", "run-2", "run-3"):
        program.batch(run)
    assert len(program.sink.held) == 1


def test_a_recovery_that_is_tried_again_closes_what_the_first_try_opened(tmp_path: Path, passed: list[int]) -> None:
    program = Program(tmp_path, told=False)
    program.batch("run-0")
    program.sink.away = True  # the sweep at the end of recovery fails
    for _ in range(3):
        with pytest.raises(SystemUnavailable):
            program.batch("run-1")
    program.sink.away = False
    program.batch("run-1")
    assert len(program.sink.held) == 1


def test_a_recovery_that_fails_when_the_function_is_made_leaves_no_connection(tmp_path: Path) -> None:
    sink = CountedSink()
    sink.away = True
    spark: Any = Session()
    with pytest.raises(SystemUnavailable):
        exactly_once(sink, uid="out", checkpoint=f"file://{tmp_path}", spark=spark)
    assert sink.held == []


# A query that has no epoch


@pytest.fixture
def tended(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits for a look after an idle query."""
    looks = threading.Semaphore(0)
    monkeypatch.setattr(dropin, "_TEND_SECONDS", 0.01)
    monkeypatch.setattr(Coordinator, "tend", lambda _: looks.release())

    def wait() -> None:
        assert looks.acquire(timeout=30)

    return wait


def the_tender(function: ExactlyOnce) -> threading.Thread:
    assert function._tending is not None
    return function._tending


def test_an_idle_query_is_tended_until_it_ends(tmp_path: Path, passed: list[int], tended: Callable[[], None]) -> None:
    program = Program(tmp_path)
    program.batch("run-1")
    tended()
    tended()
    program.execution.active = False
    the_tender(program.function).join(30)
    assert not the_tender(program.function).is_alive()
    assert program.sink.held == [], "nobody needs its connections any more"


@pytest.mark.parametrize("by_program", [False, True])
def test_operations_are_attached_while_it_runs(
    tmp_path: Path, passed: list[int], tended: Callable[[], None], monkeypatch: pytest.MonkeyPatch, by_program: bool
) -> None:
    """Until the query ends, or the program, which then waits for that."""
    seen: list[Any] = []
    ends: list[Callable[[], None]] = []

    @contextmanager
    def attached(events: Any, job: str, *described: Any) -> Iterator[None]:
        seen.append(job)
        yield
        seen.append("ended")

    monkeypatch.setattr(attach, "attached_query", attached)
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.setattr(atexit, "unregister", ends.remove)
    program = Program(tmp_path)
    program.batch("run-1")
    tended()
    assert seen == [program.function._name]
    if by_program:
        ends[0]()
    else:
        program.execution.active = False
    the_tender(program.function).join(30)
    assert seen == [program.function._name, "ended"]
    assert ends == []
    assert program.sink.held == []


def test_one_query_is_tended_once(tmp_path: Path, passed: list[int], tended: Callable[[], None]) -> None:
    program = Program(tmp_path)
    program.batch("run-1", 0)
    first = the_tender(program.function)
    program.batch("run-1", 1)
    assert the_tender(program.function) is first
    program.batch("run-2", 2)
    assert the_tender(program.function) is not first
    first.join(30)
    assert not first.is_alive(), "its run is over"
    tended()
    program.execution.active = False


def test_a_session_that_is_gone_ends_the_tending(tmp_path: Path, passed: list[int], tended: Callable[[], None]) -> None:
    program = Program(tmp_path)
    program.batch("run-1")

    def gone() -> bool:
        raise ConnectionRefusedError("no JVM")

    program.execution.isActive = gone  # type: ignore[method-assign]
    the_tender(program.function).join(30)
    assert not the_tender(program.function).is_alive()


# Names


def test_without_a_job_each_checkpoint_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    names = []
    for folder in ("one", "other", "one"):
        program = Program(tmp_path / folder)
        said = Ledger(LocalStorage(tmp_path / folder / "_penstock")).generation(program.generation)
        assert said is not None
        names.append(said["job"])
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("penstock-") for name in names)
