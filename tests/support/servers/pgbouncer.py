"""A real PgBouncer in front of a PostgreSQL server, on this machine only."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.dev.kafka import HOST
from tests.support.servers import packages
from tests.support.servers.postgres import Postgres
from tests.support.servers.processes import exchange
from tests.support.servers.unprivileged import UnprivilegedServer, give

#: A request for TLS, which every pooler answers with one letter.
_ASK_TLS = bytes([0, 0, 0, 8, 4, 210, 22, 47])


def find_pgbouncer() -> Path:
    return packages.find_or_install(
        "pgbouncer",
        _find,
        {"apt-get": lambda: packages.install_from_system(["pgbouncer"], _find)},
        to_do="Install PgBouncer so that pgbouncer is on PATH.",
    )


def _find() -> Path | None:
    found = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    return Path(found) if found else None


class PgBouncer(UnprivilegedServer):
    """A started pooler. `dsn` leads through it, as the same user to the same database."""

    account_name = "postgres"
    name = "PgBouncer"
    log_name = "pgbouncer.log"
    data_name = "."

    def __init__(self, behind: Postgres, pooling: str, settings: Mapping[str, str]) -> None:
        super().__init__(None)
        self._behind, self._pooling, self._settings = behind, pooling, dict(settings)

    @classmethod
    def start(cls, behind: Postgres, pooling: str, **settings: str) -> PgBouncer:
        """`pooling` is session, transaction or statement; `settings` go over the defaults."""
        return cls(behind, pooling, settings)._begin()

    @property
    def dsn(self) -> str:
        return f"postgresql://penstock@{HOST}:{self.port}/postgres"

    @property
    def _config(self) -> Path:
        return self.folder / "pgbouncer.ini"

    def _prepare(self) -> None:
        chosen = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self._pooling,
            "default_pool_size": "20",
            **self._settings,
        }
        server = f"host={HOST} port={self._behind.port} dbname=postgres user=penstock password={self._behind.password}"
        settings = "".join(f"{name} = {value}\n" for name, value in chosen.items())
        self._config.write_text(f"[databases]\npostgres = {server}\n[pgbouncer]\n{settings}")
        account = self._account()
        if account is not None:
            give(account, self.folder, self._config)
        self._config.chmod(0o600)

    def _command(self) -> list[str]:
        return [str(find_pgbouncer()), str(self._config)]

    def _answers(self) -> bool:
        return exchange(self.port, _ASK_TLS, 1) in (b"N", b"S")
