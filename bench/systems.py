"""Flink, Penstock and Spark's own sink, each as something that is given a task, runs, is killed, saved and stopped."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from flink_cluster import FlinkCluster, flink_cluster
from flink_sql import statements
from penstock.cli.run import run as penstock_run
from penstock.errors import ControlError
from penstock.ops.process.registry import HOME_VARIABLE, Entry, Registry
from penstock.ops.server.client import Client
from penstock.processes import end_session
from servers import OwnTime
from tasks import Task

HERE = Path(__file__).parent
_POLL_SECONDS = 0.01
_START_SECONDS = 180.0
_STOP_SECONDS = 60.0


class Run(ABC):
    """A task under way."""

    @property
    @abstractmethod
    def roots(self) -> list[int]:
        """The processes that it is, with all their descendants."""

    @abstractmethod
    def has_started(self) -> bool:
        """Whether it takes rows. Raises where it has ended."""

    @abstractmethod
    def kill(self) -> float:
        """SIGKILL to the process that does the work, where another will go on; the moment, in seconds since 1970."""

    @abstractmethod
    def control(self) -> tuple[Client, str]:
        """Who is asked for a savepoint, and of which job: Penstock understands what Flink does."""

    @abstractmethod
    def check(self) -> None:
        """Raises where it has ended or failed. Costs next to nothing."""

    def wait_for_start(self) -> None:
        wait_until(self.has_started, _START_SECONDS, "the task has not started")

    def wait_until(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Without disturbing it: whether it lives is asked once a second."""

        def holds() -> bool:
            self.check()
            return condition()

        wait_until(holds, seconds, otherwise, every=1.0)

    def save(self, folder: Path) -> float:
        """Take a savepoint; seconds until it was complete."""
        client, job = self.control()
        began, request = time.monotonic(), uuid.uuid4().hex
        body = {"target-directory": str(folder), "formatType": "NATIVE", "triggerId": request}
        client.ask("POST", f"/jobs/{job}/savepoints", body)

        def is_done() -> bool:
            told = client.ask("GET", f"/jobs/{job}/savepoints/{request}")
            if "failure-cause" in (told.get("operation") or {}):
                raise SystemExit(f"the savepoint failed: {told['operation']['failure-cause']}")
            return bool(told["status"]["id"] == "COMPLETED")

        wait_until(is_done, 300, "the savepoint is not complete")
        return time.monotonic() - began


class System(ABC):
    """Something that can do a task."""

    name: str
    guarantee: ClassVar[str] = "exactly once"

    @abstractmethod
    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        """Begin with the task, and have nothing running when the block ends."""
        yield NotImplemented


class Flink(System):
    """A cluster for this task alone. `spare`: TaskManagers beyond the one that the task needs."""

    def __init__(self, *, spare: int = 0, settings: Mapping[str, str] | None = None, name: str = "flink") -> None:
        self.name = name
        self._spare, self._settings = spare, dict(settings or {})

    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        slots = {"taskmanager.numberOfTaskSlots": str(len(os.sched_getaffinity(0)))}
        place = Path(task.folder) / "flink"
        place.parent.mkdir(parents=True, exist_ok=True)
        with flink_cluster(place, workers=1 + self._spare, settings={**slots, **self._settings}) as cluster:
            job = cluster.submit(statements(task, (place / "checkpoints").as_uri()))
            yield FlinkRun(cluster, job)
            cluster.cancel(job)  # it aborts what it has open, so that nothing is left to the broker


class FlinkRun(Run):
    def __init__(self, cluster: FlinkCluster, job: str) -> None:
        self._cluster, self._job = cluster, job

    @property
    def roots(self) -> list[int]:
        return self._cluster.roots

    def has_started(self) -> bool:
        return self._cluster.is_running(self._job)

    def check(self) -> None:
        self._cluster.is_running(self._job)

    def kill(self) -> float:
        worker = self._cluster.busiest(self._job)
        moment = time.time()
        worker.kill()
        return moment

    def control(self) -> tuple[Client, str]:
        return self._cluster.client, self._job


class Script(Run):
    """A program of this folder in a session of its own."""

    def __init__(self, task: Task, command: list[str]) -> None:
        self._folder = Path(task.folder)
        self.events = self._folder / "events.jsonl"
        self.home = self._folder / "home"
        paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in paths if one),
            "PENSTOCK_EVENTS": str(self.events),
            HOME_VARIABLE: str(self.home),
        }
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, env=environment,
                start_new_session=True,
            )  # fmt: skip

    @property
    def roots(self) -> list[int]:
        return [self._process.pid]

    def check(self) -> None:
        if self._process.poll() is not None:
            end = (self._folder / "log").read_text(errors="replace")[-4000:]
            raise SystemExit(f"the task ended with status {self._process.returncode}:\n{end}")

    def has_started(self) -> bool:
        self.check()
        return self.first("opened") is not None

    def first(self, event: str) -> float | None:
        """When it was first told, in seconds since 1970."""
        if not self.events.exists():
            return None
        whole = self.events.read_text().rpartition("\n")[0].splitlines()
        return next((told["time"] for told in map(json.loads, whole) if told["event"] == event), None)

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        end_session(self._process.pid, 5.0)

    def kill(self) -> float:
        raise NotImplementedError("nobody would start it again")

    def control(self) -> tuple[Client, str]:
        raise NotImplementedError("it has no savepoints")


class SparkSink(System):
    name = "spark"
    guarantee = "at least once"

    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        script = Script(task, [sys.executable, str(HERE / "task_spark.py"), str(task.write())])
        try:
            yield script
        finally:
            script.stop()


class Penstock(System):
    """Under `penstock run`, as a user starts it; `options` are of that command."""

    def __init__(self, *options: str, name: str = "penstock") -> None:
        self.name = name
        self._options = options

    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        penstock = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
        command = [*penstock, "run", *self._options, str(HERE / "task_penstock.py"), str(task.write())]
        script = PenstockRun(task, command)
        try:
            yield script
        finally:
            script.stop()


class OneTask(Penstock):
    """Epochs in which one task reads all source partitions, as suits short epochs on few cores."""

    def __init__(self) -> None:
        super().__init__(name="penstock, one task")

    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        with super().start(replace(task, one_task=True)) as run:
            yield run


class RealTime(Penstock):
    """The real-time mode: lanes commit every `latency`, positions go into the ledger every ten seconds."""

    def __init__(self, latency: str = "20ms", slots: int = 6) -> None:
        super().__init__("-D", f"spark.master=local[{slots}]", name="penstock, real time")
        self._latency = latency

    @contextmanager
    def start(self, task: Task) -> Iterator[Run]:
        with super().start(
            replace(task, latency=self._latency, interval=10.0, epoch_rows=None, json_way="plain")
        ) as run:
            yield run


class PenstockRun(Script):
    def kill(self) -> float:
        driver = self._entry().pid
        assert driver is not None
        moment = time.time()
        os.kill(driver, signal.SIGKILL)
        return moment

    def control(self) -> tuple[Client, str]:
        entry = self._entry()
        return Client(str(entry.address), entry.token), entry.id

    def _entry(self) -> Entry:
        return next(one for one in Registry(self.home).entries() if one.driven)


def has_standby() -> bool:
    """Whether this Penstock knows `penstock run --standby`."""
    return "standby" in inspect.signature(penstock_run).parameters


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: str, *, every: float = _POLL_SECONDS) -> None:
    """Raises `SystemExit` with `otherwise` where the condition does not come true in time: what these processes had."""
    own = OwnTime()
    while not _holds(condition):
        if own() > seconds:
            raise SystemExit(f"{otherwise} after {seconds:.0f} s")
        time.sleep(every)


def _holds(condition: Callable[[], Any]) -> bool:
    try:
        return bool(condition())
    except ControlError:
        return False  # a server that is still coming up, or about to be another
