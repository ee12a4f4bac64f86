"""A server program as a child of this process: launched, asked until it answers, ended, killed; its log kept."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.dev.servers.process import end_process
from penstock.errors import DevelopmentError

_POLL_SECONDS = 0.02
_TELLING = 20  # lines of the log in an error


class Child:
    """`name` is for people ("The Redis server"), `log` takes all it writes, `data` is what stays of it."""

    def __init__(self, name: str, log: Path, data: Path, *, ready: float, patience: float) -> None:
        self.name, self.log, self._data = name, log, data
        self._ready, self._patience = ready, patience
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if not self.running:
            raise self.failure(f"{self.name} is not running.")
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, command: Sequence[str], answers: Callable[[], bool], at_exit: Callable[[], None]) -> None:
        """Returns once it answers; `at_exit` is called should this process end first."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                start_new_session=True,  # Ctrl-C in the terminal is for the program, which then stops us in order
            )
        atexit.unregister(at_exit)
        atexit.register(at_exit)
        end = time.monotonic() + self._ready
        while not answers():
            if self._process.poll() is not None:
                raise self.failure(f"{self.name} ended while starting (status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self.failure(f"{self.name} did not answer within {self._ready:.0f} s.")
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long. Does nothing if it does not run."""
        process = self._process
        if process is not None and process.poll() is None:
            end_process(process.pid, self._patience, gone=lambda: process.poll() is not None)

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a server, short of the page cache."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def failure(self, happened: str) -> DevelopmentError:
        """With the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TELLING:] if self.log.exists() else []
        said = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{said or ' it is empty.'}",
            safe=f"Its data in {self._data} is as the server left it.",
            to_do=f"Read {self.log}; free the port or the memory it asks for, or start it in another folder.",
        )
