"""A real MariaDB (or MySQL) server for development and tests: one process, on this machine only, in its own folder.

    with MariaDb.start() as server:
        connection = pymysql.connect(**server.login, database="test")

The program is the one that the environment's `PENSTOCK_MYSQLD` names, else `mariadbd` or `mysqld` from PATH or
`/usr/sbin`. Where there is none, root on Debian gets MariaDB from the system's packages.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.caches import user_cache
from penstock.dev.servers.child import Child
from penstock.dev.servers.packages import install, may_install, run
from penstock.dev.servers.ports import HOST, free_port
from penstock.errors import DevelopmentError
from penstock.storage.private import only_one

_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0  # a clean stop writes its dirty pages
_FORMAT_SECONDS = 60.0
PROGRAM = "PENSTOCK_MYSQLD"  # in the environment: the server to use
_PROGRAMS = ("mariadbd", "mysqld")
#: What MariaDB's installer makes and MySQL's does not: the user as seen from a socket, and the database.
_AS_MARIADB = f"""
CREATE USER IF NOT EXISTS 'root'@'{HOST}' IDENTIFIED BY '';
GRANT ALL PRIVILEGES ON *.* TO 'root'@'{HOST}' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS test;
"""
_ASIDE = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")  # servers are often not on a user's PATH

#: Small and quick to start. What decides how transactions survive a crash is the server's default.
DEFAULTS: Mapping[str, str] = {
    "bind-address": HOST,
    "innodb-buffer-pool-size": "128M",
    "local-infile": "1",
    "skip-name-resolve": "1",
    "max-connections": "100",
}


def find_mariadb() -> Path:
    """The server's program, installed now if there is none; `DevelopmentError` where that does not work."""
    if found := _there():
        return found
    said = "needs root on Debian"
    if may_install():
        with only_one(user_cache() / "dev" / "mariadb.lock"):
            # Only the program itself: Debian's full package would set up and start a server of its own.
            said = install(["mariadb-server-core", "mariadb-client-core"], _there, run)
    if found := _there():
        return found
    raise DevelopmentError(
        f"There is no mariadbd or mysqld, and none could be installed (apt-get: {said}).",
        safe="Nothing was started.",
        to_do="Install MariaDB or MySQL so that mariadbd or mysqld is on PATH.",
    )


def _there() -> Path | None:
    if named := os.environ.get(PROGRAM):
        return Path(named)
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ASIDE])
    for program in _PROGRAMS:
        if found := shutil.which(program, path=places):
            return Path(found)
    return None


def _user() -> str | None:
    """Who runs the server: never root, which it refuses. None: whoever we are."""
    if os.geteuid() != 0:
        return None
    for name in ("mysql", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


@dataclass(slots=True)
class MariaDb:
    """A started server with the user `root`, no password, and the database `test`. `start` returns once it answers;
    every method returns once its effect is there."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _ours: bool = False
    _child: Child = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._child = Child("The MariaDB server", self.log, self._data, ready=_READY_SECONDS, patience=_STOP_SECONDS)

    @classmethod
    def start(
        cls, folder: Path | None = None, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> MariaDb:
        """Start a server whose whole life is in `folder`; data found there is used again. Without `folder` it is a new
        temporary one that `stop` removes. Started by root the server runs as another user, which must be able to reach
        the folder. `settings` go over the defaults, in the names of my.cnf."""
        ours = folder is None
        place = Path(folder or tempfile.mkdtemp(prefix="penstock-mariadb-")).absolute()
        server = cls(place, port if port is not None else free_port(), dict(settings or {}), ours)
        try:
            server._prepare()
            server._launch()
        except BaseException:
            server._remove()
            raise
        return server

    @property
    def login(self) -> dict[str, Any]:
        """Keyword arguments for a client, or for `MySqlSink`."""
        return {"host": HOST, "port": self.port, "user": "root", "password": ""}

    @property
    def log(self) -> Path:
        """Everything the server wrote, over all its restarts."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def stop(self) -> None:
        """End it cleanly; a temporary folder goes with it. Does nothing if it does not run."""
        self._child.end()
        self._remove()

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a server, short of the page cache."""
        self._child.kill()

    def restart(self) -> None:
        """End it if it runs, then start it again on the same port with the same data."""
        self._child.end()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _remove(self) -> None:
        self.kill()
        if self._ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        user = _user()
        for place in (self._data, self._run):
            place.mkdir(mode=0o700, exist_ok=True)
            if user is not None:
                # Only these are the server's: what root writes beside them cannot be turned into links by it.
                shutil.chown(place, user)
        if user is not None:
            self.folder.chmod(self.folder.stat().st_mode | 0o011)  # to pass through, not to look around
        lines = {**DEFAULTS, "port": str(self.port), "datadir": str(self._data), **self.settings}
        lines["socket"] = str(self._run / "server.sock")
        lines["pid-file"] = str(self._run / "server.pid")
        if user is not None:
            lines["user"] = user
        self._config.write_text("[mysqld]\n" + "".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self._data / "mysql").exists():
            self._format(user)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _run(self) -> Path:
        return self.folder / "run"

    @property
    def _config(self) -> Path:
        return self.folder / "my.cnf"

    def _format(self, user: str | None) -> None:
        program = find_mariadb()
        if "MariaDB" in subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout:
            command = [
                "mariadb-install-db", f"--defaults-file={self._config}", "--auth-root-authentication-method=normal",
                "--skip-name-resolve", *([f"--user={user}"] if user else []),
            ]  # fmt: skip
        else:
            command = [str(program), f"--defaults-file={self._config}", "--initialize-insecure"]
            (self.folder / "first.sql").write_text(_AS_MARIADB)
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_FORMAT_SECONDS, check=False
            )
        if done.returncode != 0:
            raise self._child.failure(f"MariaDB could not set up its data folder (exit status {done.returncode}).")

    def _launch(self) -> None:
        command = [str(find_mariadb()), f"--defaults-file={self._config}"]
        first = self.folder / "first.sql"
        if first.exists():
            command.append(f"--init-file={first}")
        self._child.launch(command, lambda: _answers(self.port), self._remove)


def _answers(port: int) -> bool:
    """Whether a server greets on `port`: it does so only once its tables are recovered."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            greeting = connection.recv(5)
    except OSError:
        return False
    return len(greeting) == 5 and greeting[4] == 10  # the protocol's version; an error would be 255
