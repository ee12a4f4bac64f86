"""Lines of text from a TCP server, as in the classic word count; with a journal, exactly once."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.config.option import size
from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Finding
from penstock.contracts.source import Source
from penstock.sources.journal import Journal, read_identity, require_same
from penstock.sources.streams import register, stream_reader
from penstock.storage.local import folder_warnings, require_own
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("penstock")

_TAKE = 256 << 10  # bytes taken at a time: one frame of the journal, one sync
_CONNECT_SECONDS, _LOOK_SECONDS = 10.0, 0.2  # to connect; until a stop is noticed
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # between two tries to connect
_DISK_PAUSE = 0.5  # between two tries to write


class SocketSource(Source):
    """Connects to `host:port` and reads lines: `value string, received timestamp`, one row a line. It is connected
    while the job runs, and tries again and again where the server is not there or goes away.

    `journal` is a folder on the driver's local disk, one for each source. Every line is durable there before Spark
    learns of it, so a crash neither loses nor repeats it: exactly once *from the moment it was received*. Lines that a
    server sends while no job is connected, or that are on their way when the driver dies, are lost: plain TCP has no
    way to ask again. Without a journal every line that was received and not yet written is lost with the driver: at
    most once.

    `received` is the moment of receipt, the same in every replay. Bytes after the last newline of a connection are
    dropped. `keep` is how much of what is committed stays in the journal, for a restore from an older savepoint.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        journal: str | os.PathLike[str] | None = None,
        max_bytes_per_epoch: int | str = "16mb",
        keep: int | str = "64mb",
        max_line_bytes: int | str = "1mb",
    ) -> None:
        self.host, self.port = host, int(port)
        self.journal = None if journal is None else local_path(os.fspath(journal))
        self.max_bytes_per_epoch = size(max_bytes_per_epoch, "max_bytes_per_epoch")
        self.keep = size(keep, "keep")
        self.max_line_bytes = size(max_line_bytes, "max_line_bytes")
        if not host or not 0 < self.port < 65536 or self.max_bytes_per_epoch < 1 or self.max_line_bytes < 1:
            raise errors.ConfigurationError(
                f"SocketSource cannot work with {host!r}, port {port}, {self.max_bytes_per_epoch} bytes per epoch and"
                f" {self.max_line_bytes} bytes per line.",
                to_do="give a host, a port from 1 to 65535, and at least one byte.",
            )
        if journal is not None and self.journal is None:
            raise errors.ConfigurationError(
                f"{journal} cannot be the journal of a socket: it is not on a local disk.",
                to_do="give a folder on the driver's machine; it has to sync what it writes, and to lock.",
            )
        self._scratch = Path(tempfile.gettempdir()) / f"penstock-lines-{uuid.uuid4().hex}"  # where there is no journal
        self._receivers: dict[str, Receiver] = {}
        self._committed: dict[str, dict[str, tuple[int, ...]]] = {}  # of each reader, the last two epochs

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        from penstock.sources.readers import JournalledLines

        register(spark, JournalledLines)
        reader = stream_reader(spark, uid).format(JournalledLines.name())
        strict, most = self.journal is not None, self.max_bytes_per_epoch
        return reader.options(folder=str(self._place(uid)), strict=strict, most=most).load()

    def link(self, uid: str) -> Link:
        if self.journal is None:
            because = f"{self.describe()} cannot send a line again, and there is no journal"
            remedy = "give the source a journal=, a folder on the driver's disk; or ask for mode=at_most_once."
            return Link("source", uid, Guarantee.AT_MOST_ONCE, because, remedy)
        because = f"replayable from the moment of receipt, {self.describe()}, journal in {self.journal}"
        return Link("source", uid, Guarantee.EXACTLY_ONCE, because)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Looks the host up and the journal over. It does not connect: many a server takes one connection only."""
        warnings: list[str] = []
        if self.journal is not None:
            warnings = folder_warnings(self.journal, "a journal")
            require_own(self.journal)
            require_same(self.journal, read_identity(self.journal), context.job, uid)
        try:
            socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise errors.SystemUnavailable(
                f"The host {self.host!r} of source {uid!r} is not known: {error}.",
                safe="nothing was started.",
                to_do="correct the name, or see to the name service.",
            ) from error
        return [Finding(uid, text) for text in warnings]

    @property
    def identified(self) -> bool:
        return self.journal is not None

    def parts(self, offset: Any) -> Mapping[str, Any]:
        return {"journal": offset["position"]} if offset["position"] else {}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        identity = {} if self.journal is None else read_identity(self.journal)
        return {"journal": identity["id"]} if identity else {}

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:
        raise errors.PositionsLost(
            f"The journal {self.journal} of source {uid!r} is not the one that the checkpoint's positions belong to: it"
            " was deleted, or replaced, and begun anew.",
            safe="nothing was skipped; the job stops before lines that it would have left out.",
            to_do="bring back the journal that belongs to this checkpoint; or give the query another uid to start over"
            " with what is there.",
        )

    def start(self, job: str, uid: str, readers: Sequence[str]) -> None:
        # Without a journal, positions follow the clock: those of an earlier run must never come again.
        first = time.time_ns() if self.journal is None else 0
        opener = partial(Journal, self._place(uid), job=job, source=uid, start=first)
        receiver = Receiver(self.host, self.port, opener, longest_line=self.max_line_bytes)
        receiver.start()
        self._committed[uid], self._receivers[uid] = dict.fromkeys(readers, ()), receiver

    def completed(self, uid: str, reader: str, offset: Any) -> None:
        if uid not in self._receivers:
            return
        # Spark has not logged the epoch that is just committed, and might ask for it again; not for those before it.
        positions = self._committed[uid]
        positions[reader] = (*positions.get(reader, ())[-1:], int(offset["position"]))
        if all(len(epochs) == 2 for epochs in positions.values()):
            free = min(epochs[0] for epochs in positions.values())
            self._receivers[uid].trim(free - (self.keep if self.journal is not None else 0))

    def stop(self) -> None:
        for uid in list(self._receivers):
            self._receivers.pop(uid).stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def describe(self) -> str:
        return f"lines from {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"SocketSource({self.describe()})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_receivers": {}}  # a thread and its connection stay in their process

    def _place(self, uid: str) -> Path:
        return self._scratch / uid if self.journal is None else self.journal


class Receiver:
    """Receives lines into a journal, in a thread of the driver, over a connection that is renewed until `stop`. A line
    counts as received when the journal has it durably. While the disk is slow or full, the sender is held up."""

    def __init__(self, host: str, port: int, opener: Callable[[], Journal], *, longest_line: int) -> None:
        self._host, self._port, self._opener, self._longest = host, port, opener, longest_line
        self._journal: Journal | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-socket-{port}", daemon=True)
        self._pause = _FIRST_PAUSE

    def start(self) -> None:
        """Open the journal and begin. Raises what no retry can cure; anything else, such as a full disk, is retried."""
        self._journal = self._try_to_open()
        self._thread.start()

    def stop(self) -> None:
        """Everything received is in the journal when this returns."""
        self._ending.set()
        self._thread.join()
        if self._journal is not None:
            self._journal.close()

    def trim(self, position: int) -> None:
        """Let go of what lies before `position`. Never fatal: it is tried again with the next epoch."""
        try:
            if self._journal is not None:
                self._journal.trim(position)
        except errors.PenstockError as error:
            log.warning("the journal could not be trimmed: %s", error)

    def _try_to_open(self) -> Journal | None:
        try:
            return self._opener()
        except errors.PenstockError as error:
            if not error.retryable:
                raise
            log.warning("%s", error)
            return None

    def _run(self) -> None:
        try:
            while self._journal is None and not self._ending.wait(_DISK_PAUSE):
                self._journal = self._try_to_open()
            while self._journal is not None and not self._ending.is_set():
                try:
                    self._connect(self._journal)
                except OSError as error:
                    if self._pause == _FIRST_PAUSE:
                        log.warning("no connection to %s:%d, trying on: %s", self._host, self._port, error)
                    self._pause = min(self._pause * 2, _LONGEST_PAUSE)
                self._ending.wait(self._pause)
        except errors.Superseded as error:
            log.warning("%s", error)
        except errors.PenstockError as error:
            log.error("nothing more is received from %s:%d: %s", self._host, self._port, error)
            if self._journal is not None:
                self._journal.report(error)

    def _connect(self, journal: Journal) -> None:
        with socket.create_connection((self._host, self._port), _CONNECT_SECONDS) as connection:
            if connection.getsockname() == connection.getpeername():
                raise ConnectionRefusedError("no process listens on the port, and TCP connected the socket to itself")
            log.info("receiving from %s:%d", self._host, self._port)
            self._pause = _FIRST_PAUSE
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.settimeout(_LOOK_SECONDS)
            self._receive(connection, journal)

    def _receive(self, connection: socket.socket, journal: Journal) -> None:
        rest = b""
        while not self._ending.is_set():
            try:
                taken = connection.recv(_TAKE)
            except TimeoutError:
                continue
            if not taken:
                break
            lines, newline, rest = (rest + taken).rpartition(b"\n")
            if newline:
                self._append(lines + newline, journal)
            if len(rest) > self._longest:
                raise errors.ValueTooLarge(
                    f"A line from {self._host}:{self._port} is longer than {self._longest:,} bytes.",
                    safe="all lines before it are in the journal; nothing of this one is.",
                    to_do="see that the sender ends its lines, or raise max_line_bytes, and start the job again.",
                )
        if rest:
            log.warning("the connection ended within a line: %d bytes without a newline are dropped", len(rest))

    def _append(self, lines: bytes, journal: Journal) -> None:
        """Append as often as it takes, while the sender waits; raises where a stop comes first. Lines that are in the
        journal are never appended again, whatever failed after that."""
        failing, before = False, journal.end
        while journal.end == before:
            try:
                journal.append(lines)
            except errors.PenstockError as error:
                if not error.retryable or isinstance(error, errors.Superseded):
                    raise
                if not failing:
                    log.warning("%s", error)
                failing = True
                journal.report(error)
                if self._ending.wait(_DISK_PAUSE):
                    raise
        if failing:
            journal.report(None)
