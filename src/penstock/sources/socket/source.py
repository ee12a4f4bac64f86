"""Lines of text from a TCP server, as in the classic word count; with a journal, exactly once."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.option import size
from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.source import Source
from penstock.errors import AccessDenied, ConfigurationError, PositionsLost, SystemUnavailable
from penstock.sources.socket.journal import Journal, claim_journal, journal_id
from penstock.sources.socket.receiver import Receiver
from penstock.sources.spark_reader import stream_reader
from penstock.storage.private import require_own
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.contracts.sink import CheckContext, Finding


class SocketSource(Source):
    """Connects to `host:port` and reads lines: `value string, received timestamp`, one row a line. It is connected
    while the job runs, and tries again and again where the server is not there or goes away.

    `journal` is a folder on the driver's local disk, one for each source. Every line is durable there before Spark
    learns of it, so a crash neither loses nor repeats it: exactly once *from the moment it was received*. What a server
    sends while nobody receives, and what is on its way when the driver dies, is lost: plain TCP has no way to ask
    again. Without a journal every line that was received and not yet written is lost with the driver: at most once.

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
        self.host = host
        self.port = int(port)
        self.journal = None if journal is None else _folder(os.fspath(journal))
        self.max_bytes_per_epoch = size(max_bytes_per_epoch, "max_bytes_per_epoch")
        self.keep = size(keep, "keep")
        self.max_line_bytes = size(max_line_bytes, "max_line_bytes")
        if not host or not 0 < self.port < 65536 or self.max_bytes_per_epoch < 1 or self.max_line_bytes < 1:
            raise ConfigurationError(
                f"SocketSource cannot work with {host!r}, port {port}, {self.max_bytes_per_epoch} bytes per epoch and"
                f" {self.max_line_bytes} bytes per line.",
                to_do="give a host, a port from 1 to 65535, and at least one byte.",
            )
        self._folders: dict[str, Path] = {}
        self._receivers: dict[str, Receiver] = {}
        self._committed: dict[str, dict[str, tuple[int, ...]]] = {}  # of each reader, the last two epochs

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        from penstock.sources.socket.reader import JournalledLines
        from penstock.sources.spark_reader import register

        register(spark, JournalledLines)
        options = {
            "folder": str(self._place(uid)),
            "strict": "true" if self.journal is not None else "false",
            "most": str(self.max_bytes_per_epoch),
        }
        return stream_reader(spark, uid).format(JournalledLines.name()).options(**options).load()

    def link(self, uid: str) -> Link:
        if self.journal is None:
            return Link(
                "source",
                uid,
                Guarantee.AT_MOST_ONCE,
                f"{self.describe()} cannot send a line again, and there is no journal",
                "give the source a journal=, a folder on the driver's disk; or ask for mode=at_most_once.",
            )
        because = f"replayable from the moment of receipt, {self.describe()}, journal in {self.journal}"
        return Link("source", uid, Guarantee.EXACTLY_ONCE, because)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Looks the host up and the journal over. It does not connect: many a server takes one connection only."""
        if self.journal is not None:
            nearest = next(one for one in (self.journal, *self.journal.parents) if one.exists())
            if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
                raise AccessDenied(
                    f"{nearest} is not a folder that this user may write, so the journal of {uid!r} cannot be in it.",
                    to_do="grant the right to write, or choose another folder.",
                )
            if nearest == self.journal:
                require_own(nearest)
            claim_journal(self.journal, context.job, uid, create=False)
        try:
            socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SystemUnavailable(
                f"The host {self.host!r} of source {uid!r} is not known: {error}.",
                safe="nothing was started.",
                to_do="correct the name, or see to the name service.",
            ) from error
        return ()

    @property
    def identified(self) -> bool:
        return self.journal is not None

    def parts(self, offset: Any) -> Mapping[str, Any]:
        return {"journal": offset["position"]} if offset["position"] else {}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        found = None if self.journal is None else journal_id(self.journal)
        return {} if found is None else {"journal": found}

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:
        raise PositionsLost(
            f"The journal {self.journal} of source {uid!r} is not the one that the checkpoint's positions belong to: it"
            " was deleted, or replaced, and begun anew.",
            safe="nothing was skipped; the job stops before lines that it would have left out.",
            to_do="bring back the journal that belongs to this checkpoint; or give the query another uid to start over"
            " with what is there.",
        )

    def start(self, job: str, uid: str, readers: Sequence[str]) -> None:
        folder, durable = self._place(uid), self.journal is not None

        def open_journal() -> Journal:
            # Positions of an earlier run must never come again: where nothing is kept, they go on with the clock.
            return Journal(folder, job=job, source=uid, durable=durable, start=0 if durable else time.time_ns())

        self._committed[uid] = dict.fromkeys(readers, ())
        receiver = Receiver(self.host, self.port, open_journal, longest_line=self.max_line_bytes)
        receiver.start()
        self._receivers[uid] = receiver

    def completed(self, uid: str, reader: str, offset: Any) -> None:
        positions = self._committed.get(uid)
        if positions is None or uid not in self._receivers:
            return
        before = positions.get(reader, ())
        # Spark has not logged the epoch that is just committed, and might ask for it again; not for those before it.
        positions[reader] = (*before[-1:], int(offset["position"]))
        if all(len(one) == 2 for one in positions.values()):
            free = min(one[0] for one in positions.values())
            self._receivers[uid].trim(free - (self.keep if self.journal is not None else 0))

    def stop(self) -> None:
        for uid in list(self._receivers):
            self._receivers.pop(uid).stop()
            if self.journal is None:
                shutil.rmtree(self._place(uid), ignore_errors=True)

    def describe(self) -> str:
        return f"lines from {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"SocketSource({self.describe()})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_receivers": {}}  # a thread and its connection stay in their process

    def _place(self, uid: str) -> Path:
        if self.journal is not None:
            return self.journal
        if uid not in self._folders:
            self._folders[uid] = Path(tempfile.gettempdir()) / f"penstock-lines-{uuid.uuid4().hex}"
        return self._folders[uid]


def _folder(location: str) -> Path:
    path = local_path(location)
    if path is None:
        raise ConfigurationError(
            f"{location} cannot be the journal of a socket: it is not on a local disk.",
            to_do="give a folder on the driver's machine; it has to sync what it writes, and to lock.",
        )
    return path
