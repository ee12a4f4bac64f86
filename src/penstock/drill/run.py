"""The two runs of a drill: under faults, which docs/how-to/prove-your-job.md lists, and calm over the same input."""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from penstock import failpoints
from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import SparkLog
from penstock.config.operations import FORK_NAME, FORK_SUFFIX
from penstock.drill import effects
from penstock.engine.settlement import JobLedgers
from penstock.events import FILE_VARIABLE
from penstock.ops.process.supervisor import penstock_command
from penstock.processes import command_line, session_members

KINDS = ("kill", "stop", "step", "restart")
TARGETS = ("worker", "driver", "jvm", "executor")
#: Steps that every job in epochs passes, again and again.
STEPS = tuple(
    name
    for name, where in failpoints.POINTS.items()
    if where in ("driver", "worker") and name.startswith(("recover.", "epoch.", "task.", "commit."))
    and name not in ("task.logged", "epoch.aborted")
)  # fmt: skip
_DRAWN_STEPS, _PASSINGS = 3, 2
_LONGEST_PAUSE, _LONGEST_DELAY = 4.0, 1.0
_IDLE_SECONDS = 20.0  # without an epoch, as where nothing is left to read, a fault comes all the same
_LEAVE_SECONDS = 45.0  # for a clean end; the epoch under way completes
_POLL_SECONDS = 0.05

#: What a drill sets for both runs. The restart strategy is no part of what is drilled; every decision stays readable.
_SETTINGS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "100ms",
    "execution.checkpointing.num-retained": "1000",
    "rest.port": "0",
}
#: For a calm run that ends after its first epoch: the next one never begins.
_ONE_EPOCH = {
    "execution.checkpointing.min-pause": "1h",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
}


class Planned(NamedTuple):
    """A fault to come, `delay` after an epoch: of `targets`, the first that is there."""

    kind: str
    targets: Sequence[str]
    delay: float
    lasts: float


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
            yield Planned(kind, targets, delay, round(lasts, 3) if kind == "stop" else 0.0)

    def environment(self, folder: Path) -> dict[str, str]:
        """What makes the drawn steps strike, each once over all processes."""
        folder.mkdir(exist_ok=True)
        rules = ";".join(f"{name}=crash@{passing}" for name, passing in self.steps.items())
        return {failpoints.VARIABLE: rules, failpoints.ONCE: str(folder)} if rules else {}


@dataclass
class Ran:
    """How a run went. `ended`: done (its input has ended), stopped (by the drill), failed or hung. `faults` are those
    that struck, with the seconds since the run's `begun`."""

    ended: str = ""
    error: str = ""  # the last one, also where the job went on after it
    begun: float = field(default_factory=time.time)
    seconds: float = 0.0
    faults: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """With those events that a timeline shows, each with the seconds since `begun`."""
        shown = [each for each in self.events if each["event"] in ("started", "completed")]
        return {**asdict(self), "events": [{**each, "at": round(each["time"] - self.begun, 3)} for each in shown]}

    def completed(self) -> dict[str, int]:
        """The newest complete epoch of each query."""
        return {each["query"]: each["epoch"] for each in self.events if each["event"] == "completed"}


class JobRun:
    """One run of the program as a job of another name, in `folder`, with every output under another name."""

    def __init__(self, script: Path, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder, self.suffix = folder, f"_{folder.parent.name}_{folder.name}"
        self.checkpoint = folder / "checkpoints" / f"{name}{self.suffix}"
        self._settings = {**settings, **_SETTINGS, FORK_NAME: self.checkpoint.name, FORK_SUFFIX: self.suffix}
        self._settings["execution.checkpointing.dir"] = str(self.checkpoint.parent)
        self._script, self._events = script.absolute(), folder / "events.jsonl"
        self._read, self._ran = 0, Ran()

    def ledgers(self) -> JobLedgers:
        return JobLedgers.at(str(self.checkpoint))

    def run(
        self, seconds: float, schedule: Schedule | None = None, restart: str = "",
        *, enough: Callable[[Ran], bool] = lambda ran: False, settings: Mapping[str, str] | None = None,
    ) -> Ran:  # fmt: skip
        """Until the job is done, `enough` has happened, or the time is over: then it is stopped as by its user."""
        ran, end = self._ran, time.monotonic() + seconds
        ran.begun = time.time()
        job = self._start(schedule, {**self._settings, **(settings or {})})
        strikes = self._strike(schedule, restart) if schedule is not None else iter(())
        try:
            while job.poll() is None and time.monotonic() < end and not enough(ran):
                self._look()
                next(strikes, None)
                time.sleep(_POLL_SECONDS)
            ran.ended = "stopped"
            if (status := job.poll()) is not None:
                ran.ended = "failed" if status else "done"
            self._signal_all(signal.SIGCONT)
            job.terminate()
            job.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            ran.ended = "hung"
        finally:
            job.kill()
            job.wait()
            self._look()
            self._signal_all(signal.SIGKILL)
        ran.seconds = round(time.time() - ran.begun, 2)
        ran.error = next((str(each["error"]) for each in reversed(ran.events) if each.get("error")), "")
        for file in (self.folder / "steps").glob("*.*"):
            at = round(file.stat().st_mtime - ran.begun, 3)
            ran.faults.append({"at": at, "kind": "step", "target": f"at {file.name}", "lasts": 0.0})
        ran.faults.sort(key=lambda fault: float(fault["at"]))
        return ran

    def _start(self, schedule: Schedule | None, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        hook = effects.hook_into(self.folder / "hook", self.folder / "effects.jsonl", self._script)
        path = os.pathsep.join(filter(None, [hook, os.environ.get("PYTHONPATH")]))
        environment = {
            **os.environ, "PYTHONPATH": path,
            FILE_VARIABLE: str(self._events), "PENSTOCK_HOME": str(self.folder / "home"),
            **(schedule.environment(self.folder / "steps") if schedule is not None else {}),
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
            while self._epochs() == seen and (not seen or time.monotonic() < idle):
                yield
            yield from _pause(planned.delay)
            there = self._processes()
            found = next(((kind, pid) for kind in planned.targets for pid in reversed(there.get(kind, ()))), None)
            if planned.kind == "restart":
                done = subprocess.run(shlex.split(restart), capture_output=True, check=False)
                self._note("restart", f"{restart} (exit status {done.returncode})", 0.0)
            elif found is not None:
                _signal(found[1], signal.SIGSTOP if planned.kind == "stop" else signal.SIGKILL)
                self._note(planned.kind, found[0], planned.lasts)
                yield from _pause(planned.lasts)
                _signal(found[1], signal.SIGCONT)

    def _epochs(self) -> int:
        return sum(each["event"] == "completed" for each in self._ran.events)

    def _note(self, kind: str, target: str, lasts: float) -> None:
        at = round(time.time() - self._ran.begun, 3)
        self._ran.faults.append({"at": at, "kind": kind, "target": target, "lasts": lasts})

    def _processes(self) -> dict[str, list[int]]:
        drivers = [each["pid"] for each in self._ran.events if each["event"] == "supervisor" and "pid" in each]
        found: dict[str, list[int]] = {}
        for pid in sorted(member for driver in drivers for member in session_members(driver)):
            found.setdefault("driver" if pid in drivers else kind_of(command_line(pid) or b""), []).append(pid)
        return found

    def _signal_all(self, number: int) -> None:
        for pids in self._processes().values():
            for pid in pids:
                _signal(pid, number)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _pause(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def kind_of(command: bytes) -> str:
    """Which of a driver's processes has this command line."""
    if b"CoarseGrainedExecutorBackend" in command:
        return "executor"
    if command.partition(b"\0")[0].endswith(b"java"):
        return "jvm"
    return "worker" if b"daemon" in command else "other"


def calm_run(drilled: JobRun, ran: Ran, calm: JobRun, seconds: float) -> Ran:
    """The same program over the same input, without faults: to its end where it has one, and else in one epoch, from
    where the drilled run began to where it ended. Only where it has `ended` as done, it has read just that."""
    if ran.ended == "done":
        return calm.run(seconds)
    ends = {query.uid: query.log.next_epoch()[0] - 1 for query in drilled.ledgers().queries}
    wanted = {uid for uid, last in ends.items() if last >= 0}
    for uid in wanted:
        copy_input(drilled.checkpoint / uid / layout.FIRST, calm.checkpoint / uid / layout.FIRST, ends[uid])
    calm_ran = calm.run(seconds, enough=lambda now: wanted <= now.completed().keys(), settings=_ONE_EPOCH)
    if {uid: calm_ran.completed().get(uid) for uid in wanted} == dict.fromkeys(wanted, 0):
        calm_ran.ended = "done"
    return calm_ran


def copy_input(source: Path, target: Path, last: int) -> None:
    """A checkpoint of Spark's as it is when its first epoch was cut and did not run: with everything that the other one
    had read up to its epoch `last`."""
    (target / layout.OFFSETS).mkdir(parents=True)
    (target / layout.QUERY_ID).write_text(json.dumps({"id": str(uuid.uuid4())}), "utf-8")
    for folder in (layout.SOURCES, layout.SOURCE_IDS):
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
    pairs = [(left.barrier(epoch), right.barrier(epoch)) for epoch in range(epochs)]
    same = all(mine and other and mine.offsets == other.offsets for mine, other in pairs)
    return same and epochs == right.next_epoch()[0]


def effects_of(*runs: JobRun) -> list[dict[str, str]]:
    """What the program's functions did in these runs, each once."""
    files = [file for run in runs if (file := run.folder / "effects.jsonl").exists()]
    lines = dict.fromkeys(line for file in files for line in file.read_text("utf-8").splitlines())
    return [json.loads(line) for line in lines]
