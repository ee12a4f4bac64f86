"""What all development servers share: a program on this machine only, its whole life in one folder and on one port."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self

from penstock.dev.servers.host import end_process, free_port
from penstock.errors import DevelopmentError
from penstock.processes import has_running_thread
from penstock.storage.private import create_own

_POLL_SECONDS = 0.02
_LOG_LINES = 20  # how many of the log's last lines go into an error


class Stoppable(ABC):
    """One server, or several as one: stopped at the end of a `with`."""

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Server(Stoppable):
    """A server program as a child of this process. It is running and answers once it is made by `start`; each method
    returns once its effect is there. A server that does not come up is a `DevelopmentError` with the end of its log.

    A subclass says how the server is prepared, started and asked whether it answers.
    """

    name: ClassVar[str]  # for people: "The Redis server"
    log_name: ClassVar[str] = "server.log"
    data_name: ClassVar[str] = "data"
    ready_seconds: ClassVar[float] = 60.0  # a second or two when idle; far longer on a machine busy with Spark
    stop_seconds: ClassVar[float] = 15.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | None, port: int | None = None) -> None:
        """Without `folder` it is a new temporary one, which goes when the server does; without `port` a free one."""
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
        """End it cleanly, or by force when that takes too long; a temporary folder goes with it. Does nothing if it
        does not run."""
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
        while has_running_thread(self.pid):
            time.sleep(0.005)

    def resume(self) -> None:
        """SIGCONT: undo `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def detach(self) -> int:
        """Leave the server running when this process ends; returns its pid."""
        atexit.unregister(self._abandon)
        assert self._process is not None
        _detached.append(self._process)
        return self.pid

    @abstractmethod
    def _prepare(self) -> None:
        """Put configuration and, the first time, data into the folder."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it can serve by now."""

    def _may_try_again(self, output: str) -> bool:
        """Whether a server that ended while starting, after this `output`, is worth another try."""
        return False

    def _environment(self) -> Mapping[str, str] | None:
        """What the program is started with; None: what we were."""
        return None

    def _account(self) -> pwd.struct_passwd | None:
        """Whom the program is run as; None: whoever we are."""
        return None

    @property
    def _data(self) -> Path:
        return self.folder / self.data_name

    def _begin(self) -> Self:
        """Prepare and launch; nothing is left running, and no temporary folder, where that fails."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._prepare()
            self._launch()
        except BaseException:
            self._abandon()
            raise
        return self

    def _launch(self) -> None:
        end = time.monotonic() + self.ready_seconds
        while not self._launch_once(end):
            time.sleep(_POLL_SECONDS)

    def _launch_once(self, end: float) -> bool:
        """Start it and wait until it answers; False where it is worth another try."""
        with self._open_log() as log:
            before = log.tell()
            self._process = subprocess.Popen(
                list(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the program, which then stops us in order
                env=self._environment(),
                **self._identity(),
            )
        atexit.unregister(self._abandon)
        atexit.register(self._abandon)
        while not self._answers():
            if self._process.poll() is not None:
                output = self.log.read_bytes()[before:].decode(errors="replace")
                if time.monotonic() < end and self._may_try_again(output):
                    return False
                raise self._failure(f"{self.name} ended while starting (exit status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self._failure(f"{self.name} did not answer on port {self.port} in {self.ready_seconds:.0f} s.")
            time.sleep(_POLL_SECONDS)
        return True

    def _run_once(self, command: Sequence[str], seconds: float, problem: str) -> None:
        """A program that prepares the folder; `problem` says what could not be done where it fails."""
        try:
            with self._open_log() as log:
                finished = subprocess.run(
                    list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=seconds, check=False,
                    **self._identity(),
                )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise self._failure(f"{problem} in {seconds:.0f} s.") from late
        if finished.returncode != 0:
            raise self._failure(f"{problem} (exit status {finished.returncode}).")

    def _identity(self) -> dict[str, Any]:
        account = self._account()
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account is not None else {}

    def _give(self, account: pwd.struct_passwd, *places: Path) -> None:
        """Let `account` own these folders, and nothing beside them: what root writes there cannot be turned into
        links by it. It may pass through the server's folder, but not look around."""
        for place in places:
            shutil.chown(place, account.pw_uid, account.pw_gid)
        self.folder.chmod(self.folder.stat().st_mode | 0o011)

    def _open_log(self) -> BinaryIO:
        return open(create_own(self.log, os.O_APPEND), "ab")

    def _end(self) -> bool:
        """End the process, not the folder. True if it went without force; also if it was gone already."""
        process = self._process
        if process is None or process.poll() is not None:
            return True
        return end_process(
            process.pid, self.stop_seconds, gone=lambda: process.poll() is not None, with_signal=self.stop_signal
        )

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


#: Held so that a server stopped later by this same process leaves no zombie behind.
_detached: list[subprocess.Popen[bytes]] = []
