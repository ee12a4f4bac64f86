"""A PostgreSQL server and a standby of it, which can be promoted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from penstock.dev.kafka import HOST
from tests.support.servers.postgres import Postgres, find_postgres
from tests.support.servers.unprivileged import give
from tests.support.waiting import until

_COPY_SECONDS = 120.0


class Standby(Postgres):
    """A copy of `primary` that follows it, on a port of its own."""

    name = "The standby"

    def __init__(self, primary: Postgres) -> None:
        super().__init__(None, None, primary.password, primary.settings)
        self._primary = primary

    @classmethod
    def follow(cls, primary: Postgres) -> Standby:
        return cls(primary)._begin()

    def stop_following(self) -> None:
        """As if the network between the two were cut: what the primary does from now on does not arrive."""
        self._end()

    def promote(self) -> None:
        """Let it take writes; returns when it does."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700)
        account = self._account()
        if account is not None:
            give(account, self.folder, self._data)
        command = [
            str(find_postgres() / "pg_basebackup"), "-D", str(self._data), "-R", "--checkpoint=fast", "--no-sync",
            "-d", f"{self._primary.dsn}?application_name=standby",
        ]  # fmt: skip
        self._run_once(command, _COPY_SECONDS, "The primary could not be copied")
        self._configure()

    def _answers(self) -> bool:
        assert self._process is not None
        with contextlib.suppress(OSError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[0].strip() == str(self._process.pid) and lines[7].strip() in ("standby", "ready")
        return False


class Pair:
    """Both, and the address of whichever takes writes."""

    def __init__(self, primary: Postgres, standby: Standby) -> None:
        self.primary, self.standby, self.password = primary, standby, primary.password

    @property
    def dsn(self) -> str:
        hosts = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"
        return f"postgresql://penstock:{self.password}@{hosts}/postgres?target_session_attrs=read-write"

    def wait_for_standby(self) -> None:
        """From now on a commit waits for the standby."""
        with psycopg.connect(self.primary.dsn, autocommit=True) as connection:
            until(
                lambda: connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone(),
                "the standby to follow",
            )
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            connection.execute("SELECT pg_reload_conf()")
            until(
                lambda: connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone(),
                "the standby to be waited for",
            )

    def fail_over(self) -> None:
        """The primary is gone for good, and the standby takes its place, as far as it has come."""
        self.primary.kill()
        if not self.standby.running:
            self.standby.restart()
        self.standby.promote()


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    with Postgres.start() as primary, Standby.follow(primary) as standby:
        yield Pair(primary, standby)
