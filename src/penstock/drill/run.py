"""The two runs of a drill: under faults, and calm over the same input.

| fault | what |
|---|---|
| kill | SIGKILL of the driver, the JVM, a Python worker or an executor, shortly after an epoch completed |
| stop | SIGSTOP of one of them, and SIGCONT some seconds later |
| step | SIGKILL of the process that passes a certain step of the protocol, see `failpoints` |
| restart | the user's own command, such as one that restarts a broker or cuts it off |

The seed draws kinds, targets, steps and delays. When exactly a process is hit follows from the machine as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock import failpoints
from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import SparkLog
from penstock.config.recovery import FORK_NAME, FORK_SUFFIX
from penstock.drill import effects
from penstock.engine.settlement import JobLedgers
from penstock.events import FILE_VARIABLE
from penstock.ops.process.supervisor import penstock_command
from penstock.processes import command_line, session_members
from penstock.storage.storage import Storage

KINDS = ("kill", "stop", "step", "restart")
TARGETS = ("worker", "driver", "jvm", "executor")

#: Steps that every job in epochs passes, again and again.
STEPS = tuple(
    name
    for name, where in failpoints.POINTS.items()
    if where in ("driver", "worker") and name.startswith(("recover.", "epoch.", "task.", "commit."))
    and name not in ("task.logged", "epoch.aborted")
)  # fmt: skip

_DRAWN_STEPS = 3
_PASSINGS = 2
_LONGEST_PAUSE = 4.0
_LONGEST_DELAY = 1.0
_IDLE_SECONDS = 20.0  # without an epoch, as where nothing is left to read, a fault comes all the same
_LEAVE_SECONDS = 45.0  # for a clean end; the epoch under way completes
_POLL_SECONDS = 0.05

#: What a drill sets for both runs. The restart strategy is no part of what is drilled; every decision stays readable.
_SETTINGS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "100ms",
    "execution.checkpointing.num-retained": "1000",
}
#: For a calm run that ends after one epoch, whose input is drawn up: the next one never begins.
_ONE_EPOCH = {
    "execution.checkpointing.min-pause": "1h",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: `targets` in the order in which one that is there is looked for, `delay` after an epoch."""

    kind: str
    targets: Sequence[str]
    delay: float
    lasts: float = 0.0


class Schedule:
    """Faults as a seed draws them; the same seed and kinds always give the same."""

    def __init__(self, seed: int, kinds: Collection[str]) -> None:
        self._random = Random(seed)
        self._timed = [kind for kind in ("kill", "kill", "kill", "stop", "restart") if kind in kinds]
        names = sorted(self._random.sample(STEPS, _DRAWN_STEPS)) if "step" in kinds else []
        self.steps = {name: self._random.randint(1, _PASSINGS) for name in names}

    def __iter__(self) -> Iterator[Planned]:
        draw = self._random
        while self._timed:
            kind, targets = draw.choice(self._timed), draw.sample(TARGETS, len(TARGETS))
            delay, lasts = draw.uniform(0, _LONGEST_DELAY), draw.uniform(0.5, _LONGEST_PAUSE)
            yield Planned(kind, targets, round(delay, 3), round(lasts, 3) if kind == "stop" else 0.0)

    def environment(self, folder: Path) -> dict[str, str]:
        """What makes the drawn steps strike, each once over all processes."""
        folder.mkdir(exist_ok=True)
        rules = ";".join(f"{name}=crash@{passing}" for name, passing in self.steps.items())
        return {failpoints.VARIABLE: rules, failpoints.ONCE: str(folder)} if rules else {}


@dataclass
class Ran:
    """How a run went. `ended`: done (its input has ended), stopped (by the drill), failed or hung. `faults` are those
    that struck, with the seconds since the run's `begun`."""

    ended: str = "hung"
    begun: float = field(default_factory=time.time)
    seconds: float = 0.0
    error: str = ""
    faults: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """With those events that a timeline shows, each with the seconds since `begun`."""
        shown = [each for each in self.events if each["event"] in ("started", "completed")]
        events = [{**each, "at": round(each["time"] - self.begun, 3)} for each in shown]
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "events": events}

    def completed(self) -> dict[str, int]:
        """The newest complete epoch of each query."""
        return {each["query"]: each["epoch"] for each in self.events if each["event"] == "completed"}


class JobRun:
    """One run of the program as a job of another name, in `folder`, with every output under another name."""

    def __init__(self, script: Path, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.name, self.suffix, self.folder = f"{name}-{folder.name}", f"_{folder.parent.name}_{folder.name}", folder
        self._script, self._events, self._steps = script.absolute(), folder / "events.jsonl", folder / "steps"
        self._settings = {**settings, **_SETTINGS, FORK_NAME: self.name, FORK_SUFFIX: self.suffix}
        self._settings["execution.checkpointing.dir"] = str(folder / "checkpoints")
        self._read, self._ran = 0, Ran()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoints" / self.name

    def ledgers(self) -> JobLedgers:
        return JobLedgers.at(str(self.checkpoint))

    def run(
        self,
        seconds: float,
        schedule: Schedule | None = None,
        restart: str = "",
        *,
        enough: Callable[[Ran], bool] = lambda ran: False,
        settings: Mapping[str, str] | None = None,
    ) -> Ran:
        """Until the job is done, `enough` has happened, or the time is over: then it is stopped as by its user."""
        ran, end = self._ran, time.monotonic() + seconds
        job = self._start(schedule, {**self._settings, **(settings or {})})
        strikes = self._strike(schedule, restart) if schedule is not None else None
        try:
            while job.poll() is None and time.monotonic() < end and not enough(ran):
                self._look()
                if strikes is not None:
                    next(strikes, None)
                time.sleep(_POLL_SECONDS)
            ended_itself = job.poll() is not None
            if not ended_itself:
                self._resume()
                job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = job.wait(_LEAVE_SECONDS)
                ran.ended = "done" if status == 0 and ended_itself else "failed" if ended_itself else "stopped"
        finally:
            self._kill_all(job)
        self._look()
        ran.seconds = round(time.time() - ran.begun, 2)
        if ran.ended == "failed":
            ran.error = _why(ran.events) or _tail(self.folder / "job.log")
        ran.faults += self._passed_steps()
        ran.faults.sort(key=lambda fault: float(fault["at"]))
        return ran

    def _start(self, schedule: Schedule | None, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        hook = self.folder / "hook"
        hook.mkdir(parents=True, exist_ok=True)
        (hook / "sitecustomize.py").write_text(effects.HOOK, "utf-8")
        path = os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH", "")]))
        environment = {
            **os.environ, "PYTHONPATH": path, "PENSTOCK_HOME": str(self.folder / "home"),
            FILE_VARIABLE: str(self._events), effects.FILE: str(self.folder / "effects.jsonl"),
            effects.PROGRAM: str(self._script.parent) + os.sep,
            **(schedule.environment(self._steps) if schedule is not None else {}),
        }  # fmt: skip
        command = penstock_command("run", *(f"-D{key}={value}" for key, value in settings.items()), str(self._script))
        with open(self.folder / "job.log", "ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _look(self) -> None:
        """Take in what the job has reported since the last look; a line that is not whole comes next time."""
        with contextlib.suppress(FileNotFoundError), open(self._events, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self._ran.events += [json.loads(line) for line in whole.splitlines()]

    def _strike(self, schedule: Schedule, restart: str) -> Iterator[None]:
        """One fault after the other. Each next value is a look at whether its time has come."""
        for planned in schedule:
            seen, idle = self._epochs(), time.monotonic() + _IDLE_SECONDS
            while not seen < self._epochs() and (not self._ran.completed() or time.monotonic() < idle):
                yield
            due = time.monotonic() + planned.delay
            while time.monotonic() < due:
                yield
            if planned.kind == "restart":
                done = subprocess.run(shlex.split(restart), capture_output=True, check=False)
                self._note("restart", f"{restart} (exit status {done.returncode})")
            elif (found := self._find(planned.targets)) is not None:
                target, pid = found
                number = signal.SIGSTOP if planned.kind == "stop" else signal.SIGKILL
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    self._note(planned.kind, target, pid=pid, lasts=planned.lasts)
                due = time.monotonic() + planned.lasts
                while planned.kind == "stop" and time.monotonic() < due:
                    yield
                if planned.kind == "stop":
                    self._resume()

    def _epochs(self) -> int:
        return sum(each["event"] == "completed" for each in self._ran.events)

    def _note(self, kind: str, target: str, **more: Any) -> None:
        at = round(time.time() - self._ran.begun, 3)
        self._ran.faults.append({"at": at, "kind": kind, "target": target, **more})

    def _passed_steps(self) -> list[dict[str, Any]]:
        """Each step that has struck has left a file."""
        files = self._steps.iterdir() if self._steps.exists() else ()
        begun = self._ran.begun
        return [
            {"at": round(file.stat().st_mtime - begun, 3), "kind": "step", "target": f"at {file.name}"}
            for file in files
        ]  # fmt: skip

    def drivers(self) -> list[int]:
        """Processes of every driver so far; those that are gone have no members any more."""
        return [each["pid"] for each in self._ran.events if each["event"] == "supervisor" and "pid" in each]

    def _processes(self) -> Iterator[tuple[str, int]]:
        drivers = self.drivers()
        for driver in drivers:
            for pid in session_members(driver):
                yield "driver" if pid in drivers else kind_of(command_line(pid) or b""), pid

    def _find(self, targets: Sequence[str]) -> tuple[str, int] | None:
        there = sorted(self._processes(), key=lambda found: found[1])
        return next(((kind, pid) for wanted in targets for kind, pid in reversed(there) if kind == wanted), None)

    def _resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        for _, pid in self._processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _kill_all(self, job: subprocess.Popen[bytes]) -> None:
        self._look()
        if job.poll() is None:
            job.kill()
            job.wait()
        self._signal_all(signal.SIGKILL)


def kind_of(command: bytes) -> str:
    """Which of a driver's processes has this command line."""
    if b"CoarseGrainedExecutorBackend" in command:
        return "executor"
    if command.partition(b"\0")[0].endswith(b"java"):
        return "jvm"
    return "worker" if b"daemon" in command or b"pyspark" in command else "other"


def calm_run(drilled: JobRun, ran: Ran, calm: JobRun, seconds: float) -> Ran:
    """The same program over the same input, without faults: to its end where it has one, and else in one epoch, from
    where the drilled run began to where it ended."""
    if ran.ended == "done":
        return calm.run(seconds)
    ends = {query.uid: query.log.next_epoch()[0] - 1 for query in drilled.ledgers().queries}
    wanted = {uid for uid, last in ends.items() if last >= 0}
    for uid in wanted:
        copy_input(drilled.checkpoint / uid / layout.FIRST, calm.checkpoint / uid / layout.FIRST, ends[uid])
    return calm.run(seconds, enough=lambda now: wanted <= now.completed().keys(), settings=_ONE_EPOCH)


def copy_input(source: Path, target: Path, last: int) -> None:
    """A checkpoint of Spark's as it is when its first epoch was cut and did not run: with everything that the other one
    had read up to its epoch `last`."""
    (target / layout.OFFSETS).mkdir(parents=True)
    (target / layout.QUERY_ID).write_text(json.dumps({"id": str(uuid.uuid4())}), "utf-8")
    for folder in filter(lambda name: (source / name).exists(), (layout.SOURCES, layout.SOURCE_IDS)):
        for file in filter(Path.is_file, (source / folder).rglob("*")):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    version, metadata, *offsets = (source / layout.offsets(last)).read_text("utf-8").split("\n")
    body = {**json.loads(metadata), "batchWatermarkMs": 0}
    (target / layout.offsets(0)).write_text("\n".join([version, json.dumps(body), *offsets]), "utf-8")


def same_cuts(left: SparkLog, right: SparkLog) -> bool:
    """Whether the two runs have read the same rows in the same epochs."""
    epochs = left.next_epoch()[0]
    if epochs != right.next_epoch()[0]:
        return False
    pairs = [(left.barrier(epoch), right.barrier(epoch)) for epoch in range(epochs)]
    return all(mine and other and mine.offsets == other.offsets for mine, other in pairs)


def keeps_state(storage: Storage) -> bool:
    return bool(storage.list(layout.STATE))


def effects_of(*runs: JobRun) -> list[dict[str, str]]:
    """What the program's functions did in these runs, each once."""
    lines = dict[str, None]()
    for run in runs:
        file = run.folder / "effects.jsonl"
        lines |= dict.fromkeys(file.read_text("utf-8").splitlines() if file.exists() else ())
    return [json.loads(line) for line in lines]


def _why(events: Sequence[Mapping[str, Any]]) -> str:
    return next((str(each["error"]) for each in reversed(events) if each.get("error")), "")


def _tail(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")[-400:].strip() if file.exists() else ""
