"""Receives lines from a TCP server into a journal, in a thread of the driver, for as long as the job runs.

A line counts as received when the journal has it durably; what the connection held beyond that is lost with it, because
a plain TCP sender cannot be asked again. While the disk is slow or full nothing more is taken from the connection, so
that the sender is held up instead.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from penstock.errors import PenstockError, Superseded, ValueTooLarge
from penstock.sources.socket.journal import Journal

log = logging.getLogger("penstock")

#: Bytes taken at a time: one frame of the journal, one sync.
_TAKE = 256 << 10
#: How long a connection may take to come about, and how soon a stop is noticed.
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.2
#: Between two tries to connect, or to write after a refusal: soon at first, never more than a few seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_DISK_PAUSE = 0.5


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """What ends with a newline, and the line after it that is not finished."""
    cut = data.rfind(b"\n") + 1
    return data[:cut], data[cut:]


class Receiver:
    """One connection at a time, renewed whenever it ends, until `stop`."""

    def __init__(self, host: str, port: int, open_journal: Callable[[], Journal], *, longest_line: int) -> None:
        self._host, self._port = host, port
        self._open_journal, self._longest = open_journal, longest_line
        self._journal: Journal | None = None
        self._guard = threading.Lock()  # the journal is used by this thread, and trimmed from those of the queries
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-socket-{port}", daemon=True)
        self._silent = False

    def start(self) -> None:
        """Open the journal and begin. What no later try could cure is raised here; the rest is tried again."""
        try:
            self._journal = self._open_journal()
        except PenstockError as error:
            if not error.retryable:
                raise
            log.warning("%s", error)
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is received any more; everything received is in the journal."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._guard:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def trim(self, position: int) -> None:
        """Let go of what lies before `position`. Never fatal: it is tried again with the next epoch."""
        with self._guard:
            if self._journal is None:
                return
            try:
                self._journal.trim(position)
            except PenstockError as error:
                log.warning("the journal could not be trimmed: %s", error)

    def _run(self) -> None:
        try:
            journal = self._wait_for_journal()
            pause = _FIRST_PAUSE
            while journal is not None and not self._ending.is_set():
                pause = _FIRST_PAUSE if self._connection(journal) else min(pause * 2, _LONGEST_PAUSE)
                self._ending.wait(pause)
        except Superseded as error:
            log.warning("%s", error)
        except PenstockError as error:
            log.error("nothing more is received from %s:%d: %s", self._host, self._port, error)
            with self._guard:
                if self._journal is not None:
                    self._journal.complain(error)

    def _wait_for_journal(self) -> Journal | None:
        while self._journal is None and not self._ending.wait(_DISK_PAUSE):
            try:
                opened = self._open_journal()
            except PenstockError as error:
                if not error.retryable:
                    raise
                continue
            with self._guard:
                self._journal = opened
        return self._journal

    def _connection(self, journal: Journal) -> bool:
        """One connection, from its beginning to its end; False where there was none."""
        try:
            with socket.create_connection((self._host, self._port), _CONNECT_SECONDS) as connection:
                # Where nobody listens on a port of this machine, TCP may connect a socket to itself.
                if connection.getsockname() == connection.getpeername():
                    return False
                log.info("receiving from %s:%d", self._host, self._port)
                self._silent = False
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.settimeout(_LOOK_SECONDS)
                self._receive(connection, journal)
                return True
        except OSError as error:
            if not self._silent:
                log.warning("no connection to %s:%d, trying on: %s", self._host, self._port, error)
            self._silent = True
            return False

    def _receive(self, connection: socket.socket, journal: Journal) -> None:
        rest = b""
        while not self._ending.is_set():
            try:
                taken = connection.recv(_TAKE)
            except TimeoutError:
                continue
            if not taken:
                break
            lines, rest = whole_lines(rest + taken)
            if lines and not self._append(lines, journal):
                return
            if len(rest) > self._longest:
                raise ValueTooLarge(
                    f"A line from {self._host}:{self._port} is longer than {self._longest:,} bytes.",
                    safe="all lines before it are in the journal; nothing of this one is.",
                    to_do="see that the sender ends its lines, or raise max_line_bytes, and start the job again.",
                )
        if rest:
            log.warning("the connection ended within a line: %d bytes without a newline are dropped", len(rest))

    def _append(self, lines: bytes, journal: Journal) -> bool:
        """Append, and let readers know, as often as it takes; False where a stop comes first. Meanwhile the sender
        waits. What is in the journal is never appended again, whether or not readers could be told of it."""
        failing, before = False, journal.end
        while True:
            try:
                with self._guard:
                    if journal.end == before:
                        journal.append(lines)
                    if journal.unannounced:
                        journal.announce()
                return True
            except Superseded:
                raise
            except PenstockError as error:
                if not error.retryable:
                    raise
                if not failing:
                    log.warning("%s", error)
                failing = True
                with self._guard:
                    journal.complain(error)
            if self._ending.wait(_DISK_PAUSE):
                if journal.end == before:
                    log.warning("stopped with %d bytes received that could not be kept", len(lines))
                return False
