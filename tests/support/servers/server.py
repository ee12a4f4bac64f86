"""What servers for tests share: a program on this machine only, its whole life in one folder and on one port.

`Server` is the program as a child of this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from penstock.dev.kafka import free_port
from penstock.errors import DevelopmentError
from penstock.storage.local import create_own
from tests.support.own_time import OwnTime
from tests.support.servers.processes import end_process

_POLL_SECONDS = 0.02
_LOG_LINES = 20  # how many of the log's last lines an error shows


class Stoppable(ABC):
    """One server, or several as one: stopped at the end of a `with`."""

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Server(Stoppable):
    """A server program as a child of this process, running and answering once `start` returns it. Each method returns
    once it has taken effect. A server that does not start raises `DevelopmentError` with the end of its log. A subclass
    defines how the server is prepared, started and asked whether it answers."""

    name: ClassVar[str]  # in messages: "The Kafka broker"
    log_name: ClassVar[str] = "server.log"
    data_name: ClassVar[str] = "data"
    ready_seconds: ClassVar[float] = 60.0  # a second or two when idle; far longer on a machine busy with Spark
    stop_seconds: ClassVar[float] = 15.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | None, port: int | None = None) -> None:
        """Without `folder` a temporary one is created and removed with the server; without `port` a free one is
        chosen."""
        self._is_temporary = folder is None
        prefix = f"penstock-{type(self).__name__.lower()}-"
        self.folder = Path(folder if folder is not None else tempfile.mkdtemp(prefix=prefix)).absolute()
        self.port = port if port is not None else free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Everything the server wrote, over all its restarts."""
        return self.folder / self.log_name

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server; `DevelopmentError` when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise self._failure(f"{self.name} is not running.")
        return self._process.pid

    def stop(self) -> None:
        """Stop it cleanly, or by force when that takes too long, and remove a temporary folder. Does nothing if it does
        not run."""
        self._end()
        self._abandon()
        atexit.unregister(self._abandon)

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a server, short of the page cache."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, then start it again on the same port with the same data."""
        self._end()
        self._launch()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, like a server in a long garbage collection."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal reaches one thread after the other; one that still runs may answer a last request.
        while _has_running_thread(self.pid):
            time.sleep(0.005)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @abstractmethod
    def _prepare(self) -> None:
        """Write configuration and, the first time, data to the folder."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server accepts requests by now."""

    def _may_try_again(self, output: str) -> bool:
        """Whether to start a server once more that exited during its start after printing `output`."""
        return False

    def _process_options(self) -> dict[str, Any]:
        """Further arguments of `Popen`, such as another environment or user."""
        return {}

    @property
    def _data(self) -> Path:
        return self.folder / self.data_name

    def _begin(self) -> Self:
        """Prepare and launch. If either fails, no process and no temporary folder remains."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._prepare()
            self._launch()
        except BaseException:
            self._abandon()
            raise
        return self

    def _launch(self) -> None:
        own = OwnTime()
        while not self._launch_once(own):
            time.sleep(_POLL_SECONDS)

    def _launch_once(self, own: OwnTime) -> bool:
        """Start it and wait until it answers; False where it exited and another try is worthwhile."""
        with self._open_log() as log:
            before = log.tell()
            self._process = subprocess.Popen(
                list(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal reaches this program, which then stops the server
                **self._process_options(),
            )
        atexit.unregister(self._abandon)
        atexit.register(self._abandon)
        while not self._answers():
            if self._process.poll() is not None:
                output = self.log.read_bytes()[before:].decode(errors="replace")
                if own() < self.ready_seconds and self._may_try_again(output):
                    return False
                raise self._failure(f"{self.name} ended while starting (exit status {self._process.returncode}).")
            if own() > self.ready_seconds:
                self.kill()
                raise self._failure(f"{self.name} did not answer on port {self.port} in {self.ready_seconds:.0f} s.")
            time.sleep(_POLL_SECONDS)
        return True

    def _run_once(self, command: Sequence[str], seconds: float, problem: str) -> None:
        """Run a program that prepares the folder; `problem` is the message should it fail."""
        try:
            with self._open_log() as log:
                finished = subprocess.run(
                    list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=seconds, check=False,
                    **self._process_options(),
                )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise self._failure(f"{problem} in {seconds:.0f} s.") from late
        if finished.returncode != 0:
            raise self._failure(f"{problem} (exit status {finished.returncode}).")

    def _open_log(self) -> BinaryIO:
        return open(create_own(self.log, os.O_APPEND), "ab")

    def _end(self) -> bool:
        """Stop the process, keep the folder. True if it exited without force, or had before."""
        process = self._process
        if process is None or process.poll() is not None:
            return True
        return end_process(process.pid, self.stop_seconds, lambda: process.poll() is not None, self.stop_signal)

    def _abandon(self) -> None:
        self.kill()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _failure(self, happened: str) -> DevelopmentError:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        log = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{log or ' it is empty.'}",
            safe=f"Its data in {self._data} is as the server left it.",
            to_do=f"Read {self.log}; free the port, memory or disk it asks for, or start it in another folder.",
        )


def _has_running_thread(pid: int) -> bool:
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            if stat.read_text(errors="replace").rpartition(")")[2].split()[0] not in "TtZX":
                return True
    return False
