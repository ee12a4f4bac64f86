"""One fault test's world: topics of its own, a pipeline over them, runs of it, and the verdict at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock import failpoints
from tests.support.jobs import pipeline
from tests.support.jobs.pipeline import Pipeline
from tests.support.kafka import (
    Input,
    Tail,
    assert_copied,
    assert_counted,
    assert_nothing_open,
    complete,
    counted,
    create_topic,
    open_transactions,
)
from tests.support.processes import JobProcess
from tests.support.run_job import Watched
from tests.support.verdicts import epochs_of
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock import Job

SCRIPT = Path(pipeline.__file__)


class Case:
    """Input and outputs have two partitions, so that every epoch has two writers."""

    def __init__(
        self,
        servers: str,
        folder: Path,
        *,
        count: bool = False,
        sink_servers: str | None = None,
        **config: Any,
    ) -> None:
        self.servers, self.folder = servers, folder
        self.sink_servers = sink_servers or servers
        self.once, self.release = folder / "once", folder / "release"
        self.once.mkdir(parents=True)
        self.source = Input(servers, create_topic(servers, 2, prefix="in"))
        self.config = Pipeline(
            name=f"job-{uuid4().hex[:12]}",
            servers=servers,
            source=self.source.topic,
            storage=config.pop("storage", str(folder / "checkpoints")),
            copy_to=create_topic(self.sink_servers, 2, prefix="copy"),
            count_to=create_topic(self.sink_servers, 2, prefix="count") if count else None,
            sink_servers=self.sink_servers,
            **config,
        )
        self._open = ExitStack()
        assert self.config.copy_to is not None
        self.copy = self._open.enter_context(Tail(self.sink_servers, self.config.copy_to))
        counted = self.config.count_to
        self.count = self._open.enter_context(Tail(self.sink_servers, counted)) if counted else None

    # Runs

    def start(self, points: str | Mapping[str, str] = "", **environment: str) -> JobProcess:
        """A run as a process of its own. Each failpoint acts once over all runs; `marker` tells when it has."""
        text = points if isinstance(points, str) else ";".join(f"{name}={act}" for name, act in points.items())
        arguments = [str(self.config.write(self.folder / "config.json"))]
        given = {
            failpoints.VARIABLE: text,
            failpoints.ONCE: str(self.once),
            failpoints.RELEASE: str(self.release),
        }
        process = JobProcess(SCRIPT, arguments, self.folder, environment={**given, **environment})
        self._open.enter_context(process)
        return process

    def build(self, spark: SparkSession) -> Job:
        """The same job, inside this process."""
        return pipeline.build(self.config, spark)

    def acted(self, point: str) -> bool:
        return (self.once / point).exists()

    # Conditions

    def visible(self) -> bool:
        """Whether every row that was fed is in every output."""
        return complete(self.copy, self.source) and (self.count is None or counted(self.count, self.source))

    def wait_visible(self, run: JobProcess | Running | None = None, seconds: float = 60.0) -> None:
        """Return when all that was fed is visible; fail at once, with its reason, if `run` ends before."""
        process = run if isinstance(run, JobProcess) else None

        def seen() -> bool:
            assert process is None or process.status is None, f"it ended with {process.status}\n{process.tail()}"
            if isinstance(run, Running) and not run.alive:
                run.join()
                raise AssertionError("the job ended by itself")
            return self.visible()

        until(seen, lambda: self._missing(process), seconds)

    def wait_acted(self, point: str, process: JobProcess | None = None, seconds: float = 60.0) -> None:
        until(lambda: self.acted(point), lambda: f"{point} to be passed\n{process.tail() if process else ''}", seconds)

    # Files

    def commits(self, query: str = "copy") -> set[int]:
        """The epochs in Spark's commit log."""
        folder = Path(self.config.storage) / self.config.name / query / "spark" / "commits"
        return {int(file.name) for file in folder.iterdir() if file.name.isdigit()} if folder.exists() else set()

    def manifests(self, query: str = "copy") -> list[dict[str, Any]]:
        """The decisions in the ledger, oldest first."""
        folder = Path(self.config.storage) / self.config.name / query / "ledger" / "epochs"
        return [json.loads(file.read_text())["body"] for file in sorted(folder.glob("*.json"))]

    def epochs(self, query: str = "copy") -> dict[int, int]:
        """The epoch of each row that was fed, by its id, as far as Spark's log still has it."""
        folder = Path(self.config.storage) / self.config.name / query / "spark" / "offsets"
        return epochs_of(folder, self.source.topic, self.source.places)

    # The end

    def assert_exact(self) -> None:
        """The verdict of the independent reader: nothing is left open, and no output shows an anomaly."""
        assert_nothing_open(self.sink_servers, self.config.name)
        assert self.config.copy_to is not None
        assert_copied(self.source, self.sink_servers, self.config.copy_to, self.epochs())
        if self.config.count_to is not None:
            assert_counted(self.source, self.sink_servers, self.config.count_to)

    def finish(self, process: JobProcess) -> None:
        """Wait until all is visible, end the run cleanly, and judge."""
        self.wait_visible(process)
        process.terminate()
        assert process.wait() == 0, process.tail()
        self.assert_exact()

    def finish_here(self, spark: SparkSession) -> Running:
        """The same with a next run inside this process, which starts in no time; returns it, for its events."""
        with running(self.build(spark)) as run:
            self.wait_visible(run)
            run.stop()
        self.assert_exact()
        return run

    def close(self) -> None:
        self._open.close()

    def _missing(self, process: JobProcess | None) -> str:
        counted = f", {len(self.count.values)} totals" if self.count else ""
        said = f"\n{process.tail()}" if process else ""
        held = f"; open: {open_transactions(self.servers, self.config.name)}"
        return f"all rows: {len(self.copy.values)} of {len(self.source.rows)} are visible{counted}{held}{said}"


class Running(Watched):
    """A job that runs in a thread of this process, from now on."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._thread.start()


@contextmanager
def running(job: Job) -> Iterator[Running]:
    """Runs `job` until the block ends."""
    run = Running(job)
    try:
        yield run
    finally:
        run.end()


class Endless:
    """One job that runs through many tests, each on top of what the ones before it did. A test that fails spoils it,
    and the next gets a fresh one."""

    def __init__(self, spark: SparkSession, make: Callable[[], Case]) -> None:
        self._spark, self._make = spark, make
        self._current: tuple[Case, Running] | None = None

    @contextmanager
    def world(self, *, warm: bool = False) -> Iterator[tuple[Case, Running]]:
        """The job; `warm` with a portion of rows just gone through it, so that its workers live and hold producers."""
        world, run = self._current or self._start()
        self._current = None
        try:
            if warm:
                world.source.feed(100)
                world.wait_visible()
            yield world, run
            assert run.alive
            world.assert_exact()
        except BaseException:
            self._end(world, run)
            raise
        self._current = world, run

    def close(self) -> None:
        """End the job cleanly, and judge for the last time."""
        if self._current is not None:
            world, run = self._current
            try:
                run.stop()
                world.assert_exact()
            finally:
                self._end(world, run)

    def _start(self) -> tuple[Case, Running]:
        world = self._make()
        return world, Running(world.build(self._spark))

    @staticmethod
    def _end(world: Case, run: Running) -> None:
        try:
            run.end()
        finally:
            world.close()
