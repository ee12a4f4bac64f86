"""A job as a process of its own, with all that belongs to it: killed, stopped and continued as a machine would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from penstock import processes
from tests.support.own_time import OwnTime
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


class JobProcess:
    """One run of a script in a session of its own, so that driver, JVM and Python workers can be found together."""

    def __init__(
        self, script: Path, arguments: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("run-*.log")))
        self.log = folder / f"run-{number:02d}.log"
        self._events = folder / f"run-{number:02d}.events"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment({"PENSTOCK_EVENTS": str(self._events), **(environment or {})}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The driver's exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What the job has said of itself so far; a line that is not finished is left out."""
        try:
            text = self._events.read_text()
        except FileNotFoundError:
            return []
        told = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in told if name in (None, event["event"])]

    def wait(self, seconds: float = 60.0, *, patient: bool = False) -> int:
        """The exit status, once the driver has ended. Whatever it left running is then killed too, or, with
        `patient`, waited for."""
        until(lambda: self.status is not None, lambda: f"the job to end\n{self.tail()}", seconds)
        until(lambda: not patient or not self.members(), "all that belongs to the job to end", seconds)
        self.kill()
        assert self.status is not None
        return self.status

    def terminate(self) -> None:
        """SIGTERM to the driver alone, as a process manager does."""
        self._process.send_signal(signal.SIGTERM)

    def stop_all(self) -> None:
        """SIGSTOP to every process of the job; returns when none of them runs any more."""
        until(self._all_stopped, "every process of the job to stand still", 20)

    def continue_all(self) -> None:
        for pid in self.members():
            _signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of the job, as a machine's death; returns when all are gone."""
        if self.status is None:
            self._process.kill()
        self._process.wait()
        own = OwnTime()
        while left := self.members():
            assert own() < 20, f"processes that outlive SIGKILL: {left}"
            for pid in left:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.01)

    def members(self) -> list[int]:
        """Living processes of the job. Workers form a process group of their own; the session holds them all."""
        return processes.session_members(self.pid)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _all_stopped(self) -> bool:
        running = [pid for pid in self.members() if state(pid) != "T"]
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        return not running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`."""
    parents = {child: int(fields[1]) for child, fields in processes.all_stat_fields().items()}
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def state(pid: int) -> str:
    """One letter as in `ps`; empty for a process that is gone."""
    return (processes.stat_fields(pid) or [""])[0]


def command(pid: int) -> str:
    return (processes.command_line(pid) or b"").replace(b"\0", b" ").decode(errors="replace")


def kill_workers(parent: int) -> int:
    """SIGKILL to every Python worker, and the daemon that makes them, below `parent`; how many there were."""
    workers = [pid for pid in descendants(parent) if "pyspark" in command(pid) and "daemon" in command(pid)]
    for pid in workers:
        _signal(pid, signal.SIGKILL)
    return len(workers)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_FAILPOINTS")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**plain, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}
