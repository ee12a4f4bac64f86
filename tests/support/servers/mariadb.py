"""A real MariaDB (or MySQL) server for development and tests: one process, on this machine only, in its own folder.

    with MariaDb.start() as server:
        connection = pymysql.connect(**server.login, database="test")

The program is the one that the environment's `PENSTOCK_MYSQLD` names, else `mariadbd` or `mysqld` from PATH or
`/usr/sbin`. Where there is none, root on Debian gets MariaDB from the system's packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.dev.kafka import HOST
from tests.support.servers import packages
from tests.support.servers.processes import exchange
from tests.support.servers.server import Server
from tests.support.servers.unprivileged import give, unprivileged_account

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
    # Only the program itself: Debian's full package would set up and start a server of its own.
    debian = ["mariadb-server-core", "mariadb-client-core"]
    return packages.find_or_install(
        "mariadbd or mysqld",
        _find,
        {"apt-get": lambda: packages.install_from_system(debian, _find)},
        to_do="Install MariaDB or MySQL so that mariadbd or mysqld is on PATH.",
    )


def _find() -> Path | None:
    if program := os.environ.get(PROGRAM):
        return Path(program)
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ASIDE])
    for name in _PROGRAMS:
        if found := shutil.which(name, path=places):
            return Path(found)
    return None


class MariaDb(Server):
    """A started server with the user `root`, no password, and the database `test`."""

    name = "The MariaDB server"
    stop_seconds = 30.0  # a clean stop writes its dirty pages

    def __init__(self, folder: Path | None, port: int | None, settings: Mapping[str, str]) -> None:
        super().__init__(folder, port)
        self.settings = dict(settings)

    @classmethod
    def start(
        cls, folder: Path | None = None, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> MariaDb:
        """Start a server whose whole life is in `folder`; data found there is used again. Without `folder` it is a new
        temporary one that `stop` removes. Started by root the server runs as another user, which must be able to reach
        the folder. `settings` go over the defaults, in the names of my.cnf."""
        return cls(folder, port, settings or {})._begin()

    @property
    def login(self) -> dict[str, Any]:
        """Keyword arguments for a client, or for `MySqlSink`."""
        return {"host": HOST, "port": self.port, "user": "root", "password": ""}

    @property
    def _config(self) -> Path:
        return self.folder / "my.cnf"

    @property
    def _first_statements(self) -> Path:
        return self.folder / "first.sql"

    def _prepare(self) -> None:
        places = (self._data, self.folder / "run", self.folder / "tmp")
        for place in places:
            place.mkdir(mode=0o700, exist_ok=True)
        lines = {**DEFAULTS, "port": str(self.port), "datadir": str(self._data), **self.settings}
        lines["socket"] = str(self.folder / "run" / "server.sock")
        lines["pid-file"] = str(self.folder / "run" / "server.pid")
        # A server that starts removes every temporary table in its tmpdir, also those of another one that runs.
        lines["tmpdir"] = str(self.folder / "tmp")
        account = unprivileged_account("mysql")  # the server refuses to be root
        if account is not None:
            give(account, self.folder, *places)
            lines["user"] = account.pw_name
        self._config.write_text("[mysqld]\n" + "".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self._data / "mysql").exists():
            self._format(account.pw_name if account is not None else None)

    def _format(self, user: str | None) -> None:
        program = find_mariadb()
        if "MariaDB" in subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout:
            command = [
                "mariadb-install-db", f"--defaults-file={self._config}", "--auth-root-authentication-method=normal",
                "--skip-name-resolve", *([f"--user={user}"] if user else []),
            ]  # fmt: skip
        else:
            command = [str(program), f"--defaults-file={self._config}", "--initialize-insecure"]
            self._first_statements.write_text(_AS_MARIADB)
        self._run_once(command, _FORMAT_SECONDS, "MariaDB could not set up its data folder")

    def _command(self) -> list[str]:
        command = [str(find_mariadb()), f"--defaults-file={self._config}"]
        if self._first_statements.exists():
            command.append(f"--init-file={self._first_statements}")
        return command

    def _answers(self) -> bool:
        """Whether it greets: it does so only once its tables are recovered."""
        greeting = exchange(self.port, b"", 5)
        return len(greeting) == 5 and greeting[4] == 10  # the protocol's version; an error would be 255
