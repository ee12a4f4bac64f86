"""A real MariaDB (or MySQL) server for development and tests: one process, on this machine only, in its own folder.

    with MariaDb.start() as server:
        connection = pymysql.connect(**server.login, database="test")

The program is `mariadbd` or `mysqld` from PATH or `/usr/sbin`. Where there is none, root on Debian gets it from the
system's packages.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.dev.ports import HOST, free_port
from penstock.dev.process import end_process
from penstock.errors import DevelopmentError
from penstock.runtime.files import only_one
from penstock.runtime.paths import user_cache

_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 30.0  # a clean stop writes its dirty pages
_INSTALL_SECONDS = 300.0
_FORMAT_SECONDS = 60.0
_TELLING = 20
_PROGRAMS = ("mariadbd", "mysqld")
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
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with only_one(user_cache() / "dev" / "mariadb.lock"):
            said = _install()
    if found := _there():
        return found
    raise DevelopmentError(
        f"There is no mariadbd or mysqld, and none could be installed (apt-get: {said}).",
        safe="Nothing was started.",
        to_do="Install MariaDB or MySQL so that mariadbd or mysqld is on PATH.",
    )


def _there() -> Path | None:
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *_ASIDE])
    for program in _PROGRAMS:
        if found := shutil.which(program, path=places):
            return Path(found)
    return None


def _install() -> str:
    """Only the program itself: Debian's full package would set up and start a server of its own."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", "mariadb-server-core", "mariadb-client-core"]
    said = ""
    for before in ([], [*apt, "update"]):  # the lists of packages may be old, or were never fetched
        if _there() is not None:
            break
        if before:
            _run(before, environment)
        said = _run(install, environment)
    return said


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=_INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


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
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

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
        if self._process is None or self._process.poll() is not None:
            raise self._failure("The MariaDB server is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it cleanly; a temporary folder goes with it. Does nothing if it does not run."""
        self._end()
        self._remove()

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a server, short of the page cache."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def restart(self) -> None:
        """End it if it runs, then start it again on the same port with the same data."""
        self._end()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            end_process(process.pid, _STOP_SECONDS, gone=lambda: process.poll() is not None)

    def _remove(self) -> None:
        self.kill()
        if self._ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        user = _user()
        if user is not None:
            self.folder.chmod(0o755)
            shutil.chown(self.folder, user)
        lines = {**DEFAULTS, "port": str(self.port), "datadir": str(self._data), **self.settings}
        lines["socket"] = str(self.folder / "server.sock")
        lines["pid-file"] = str(self.folder / "server.pid")
        if user is not None:
            lines["user"] = user
        self._config.write_text("[mysqld]\n" + "".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self._data / "mysql").exists():
            self._format(user)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

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
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_FORMAT_SECONDS, check=False
            )
        if done.returncode != 0:
            raise self._failure(f"MariaDB could not set up its data folder (exit status {done.returncode}).")

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_mariadb()), f"--defaults-file={self._config}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the program, which then stops us in order
            )
        atexit.unregister(self._remove)
        atexit.register(self._remove)
        end = time.monotonic() + _READY_SECONDS
        while not _answers(self.port):
            if self._process.poll() is not None:
                raise self._failure(f"The MariaDB server ended while starting (status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self._failure(f"The MariaDB server did not answer on port {self.port} in {_READY_SECONDS:.0f} s.")
            time.sleep(_POLL_SECONDS)

    def _failure(self, happened: str) -> DevelopmentError:
        lines = self.log.read_text(errors="replace").splitlines()[-_TELLING:] if self.log.exists() else []
        said = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{said or ' it is empty.'}",
            safe=f"Its data in {self._data} is as the server left it.",
            to_do=f"Read {self.log}; free the port or the memory it asks for, or start it in another folder.",
        )


def _answers(port: int) -> bool:
    """Whether a server greets on `port`: it does so only once its tables are recovered."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            greeting = connection.recv(5)
    except OSError:
        return False
    return len(greeting) == 5 and greeting[4] == 10  # the protocol's version; an error would be 255
