"""The demo's job as a process that can be killed as a machine kills it: driver, JVM and workers at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.dev.server import end_process
from penstock.processes import end_session

#: Between two looks at the events: short against the milliseconds that a phase of an epoch lasts.
POLL_SECONDS = 0.002
#: A clean stop ends the epoch under way and Spark's session; longer than this, something hangs.
STOP_SECONDS = 60.0

#: Followed by the path of a `JobConfig`.
COMMAND = (sys.executable, "-m", "penstock.dev.demo.start")

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobConfig:
    """All that the job has to know."""

    folder: str
    mode: str  # "files" or "kafka"
    rows: int
    rate: float
    servers: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> JobConfig:
        return cls(**json.loads(path.read_text()))

    @property
    def rows_per_epoch(self) -> int:
        """At most half a second of the rate, so that the rows that pile up while Spark starts stay several epochs."""
        return max(1, int(self.rate / 2))


class JobProcess:
    """One run of the job, in a session of its own so that all its processes can be found.

    Its events and its log go to files of its own: a run that dies in the middle of a line spoils no other run's.
    """

    def __init__(self, folder: Path, config: Path, number: int) -> None:
        self.log = folder / f"job-{number}.log"
        self._events = folder / f"events-{number}.jsonl"
        self._position = 0
        self.began = time.time()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*COMMAND, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment() | {"PENSTOCK_EVENTS": str(self._events)},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def events(self) -> list[Event]:
        """What the job wrote since the last call; a line that is not finished waits for the next."""
        try:
            with self._events.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    def kill(self) -> bool:
        """SIGKILL to every process of the job, and return once all are gone. False if it had ended before."""
        with contextlib.suppress(ProcessLookupError):
            if self.status is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        end_session(self._process.pid, 0)
        return status == -signal.SIGKILL

    def stop(self) -> None:
        """Ask for a clean end, and take one by force when it does not come."""
        if self.status is None:
            end_process(self._process.pid, STOP_SECONDS, gone=lambda: self.status is not None)
        end_session(self._process.pid, 0)

    def tail(self, lines: int = 25) -> list[str]:
        """The end of the job's log."""
        return self.log.read_text(errors="replace").splitlines()[-lines:]


def _environment() -> dict[str, str]:
    # The job works in the demo's folder, so that nothing Spark leaves behind lands in the user's; a path relative to
    # the user's folder has to stay what it is.
    path = os.environ.get("PYTHONPATH", "")
    absolute = os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep) if entry)
    return {**os.environ, "PYTHONPATH": absolute}
