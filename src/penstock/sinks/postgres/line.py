"""The driver's connection: one at a time, made when it is first needed and again after it was lost, never waiting
longer than it is told to."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

from penstock.deadline import Deadline
from penstock.sinks.postgres import faults
from penstock.sinks.postgres.catalog import NOW
from penstock.sinks.postgres.server import Server, client

#: What a transaction of ours needs, whatever the server's defaults are. Answers with the server's time in microseconds.
SETTINGS = f"""
SELECT set_config('application_name', $1, true), set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', '0', true), set_config('TimeZone', 'UTC', true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true),
       {NOW}
"""


class Line:
    """One psycopg connection. Used by one thread at a time."""

    def __init__(self, server: Server, table: str, name: str) -> None:
        self.server, self._table, self._name = server, table, name
        self._connection: Any = None

    def ask(self, deadline: Deadline, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own, or in the one that `begin` opened; its rows. Raises
        psycopg's errors: a caller that proves outcomes has to look at them."""
        with self._within(deadline) as connection:
            cursor = connection.execute(statement, parameters)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def count(self, deadline: Deadline, statement: str, *parameters: Any) -> int:
        """Run one statement; how many rows it changed."""
        with self._within(deadline) as connection:
            return int(connection.execute(statement, parameters).rowcount)

    def begin(self, deadline: Deadline, lock_seconds: float) -> None:
        """Open a transaction; ended by `ask` with COMMIT or ROLLBACK, or by `drop`."""
        self.ask(deadline, "BEGIN ISOLATION LEVEL READ COMMITTED")
        self.ask(deadline, SETTINGS, self._name, f"{max(1, int(lock_seconds * 1000))}ms")

    @property
    def open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def drop(self) -> None:
        """Close; a transaction under way is rolled back by the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def _within(self, deadline: Deadline) -> Iterator[Any]:
        connection = self._connected(deadline)
        # Nothing in libpq ends a wait for an answer; a connection cut under it does.
        cut = threading.Timer(max(0.05, deadline.remaining()), _cut, (connection.fileno(),))
        cut.daemon = True
        cut.start()
        try:
            yield connection
        except client().psycopg.Error:
            if connection.closed or connection.broken:
                self.drop()
            raise
        finally:
            cut.cancel()
            cut.join()  # a file number that is used again must not be cut by mistake

    def _connected(self, deadline: Deadline) -> Any:
        if not self.open:
            psycopg = client().psycopg
            seconds = max(2, min(10, int(deadline.remaining())))  # libpq takes less than two for none at all
            self._connection = psycopg.connect(
                self.server.libpq(),
                autocommit=True,
                prepare_threshold=None,  # a pooler may give us another session for every transaction
                cursor_factory=psycopg.RawCursor,
                connect_timeout=seconds,
                application_name=self._name,
            )
        return self._connection

    def naming(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Errors raised inside become ours."""
        return faults.naming(self.server, self._table, doing)


def _cut(number: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
