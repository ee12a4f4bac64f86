"""A journal of received lines on a local disk: what is in it is durable, in order, and can be read again.

A *position* counts bytes of lines. An append is one transaction with one *frame*, synced before a reader sees it.

One process owns a journal: the last that opened it. Every change checks that inside its transaction, so an earlier
owner that wakes up cannot add or delete anything.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock import errors
from penstock.checkpoint.layout import refuse_newer
from penstock.failpoints import failpoint
from penstock.storage.local import create_own, own_folder, require_own
from penstock.storage.storage import is_full

DATABASE = "journal.sqlite"
VERSION = 1
LOCK_SECONDS = 10.0  # the owner holds the lock for one append, or for good where it was stopped inside one

_SETTINGS = ("auto_vacuum=FULL", "journal_mode=WAL", "synchronous=FULL", f"journal_size_limit={16 << 20}")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS journal (version, id, job, source, start, owner, pid, error)",
    "CREATE TABLE IF NOT EXISTS frames (start INTEGER PRIMARY KEY, received, crc, lines BLOB)",
)


class Frame(NamedTuple):
    """Lines that became durable together."""

    start: int
    received: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


class Journal:
    """The owner's side. Opening it takes it over from any other process. One thread appends; any may trim and report.
    `start` is the first position of a new journal, `end` the position behind the last line."""

    end: int

    def __init__(self, folder: Path, *, job: str, source: str, start: int = 0) -> None:
        self.folder, self._token, self._lock = folder, secrets.token_hex(8), threading.Lock()
        with _named_errors(folder):
            require_own(folder)
            os.close(create_own(own_folder(folder) / DATABASE, 0))
            for file in folder.iterdir():
                file.chmod(0o600)
            self._database = _connect(folder)
            try:
                for setting in _SETTINGS:
                    self._database.execute(f"PRAGMA {setting}")
                with self._change(owned=False):
                    self._take_over(job, source, start)
                self.end = _identity(self._database)["end"]
            except BaseException:
                self.close()
                raise

    def append(self, lines: bytes, received: int | None = None) -> int:
        """Add whole lines; they are durable when this returns. `received`: microseconds since 1970. `Superseded` where
        another process has taken over. After any other error `end` tells whether the lines are in."""
        at = time.time_ns() // 1000 if received is None else received
        with self._change():
            self._database.execute("INSERT INTO frames VALUES (?, ?, ?, ?)", (self.end, at, zlib.crc32(lines), lines))
            failpoint("journal.written")
        self.end += len(lines)
        failpoint("journal.synced")
        return self.end

    def report(self, error: errors.PenstockError | None) -> None:
        """Let readers know why nothing comes, if the disk has room for it; None when lines come again."""
        with contextlib.suppress(errors.PenstockError), self._change():
            self._database.execute("UPDATE journal SET error = ?", (None if error is None else error.to_json(),))

    def trim(self, position: int) -> int:
        """Delete frames that end before `position`, except the newest; how many."""
        with self._change():
            old = "start < ?1 AND start + length(lines) <= ?1 AND start < (SELECT max(start) FROM frames)"
            return self._database.execute(f"DELETE FROM frames WHERE {old}", (position,)).rowcount

    def close(self) -> None:
        """Another process may take the journal over at any time, closed or not."""
        with self._lock:
            self._database.close()

    def _take_over(self, job: str, source: str, start: int) -> None:
        for table in _SCHEMA:
            self._database.execute(table)
        if not _identity(self._database):
            new = (VERSION, secrets.token_hex(8), job, source, start)
            self._database.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL)", new)
        require_same(self.folder, _identity(self._database), job, source)
        self._database.execute("UPDATE journal SET owner = ?, pid = ?, error = NULL", (self._token, os.getpid()))

    @contextlib.contextmanager
    def _change(self, *, owned: bool = True) -> Iterator[None]:
        """One durable change; `owned`: only as the owner."""
        with self._lock, _named_errors(self.folder):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                identity = _identity(self._database) if owned else {"owner": self._token}
                if identity.get("owner") != self._token:
                    raise errors.Superseded(
                        f"Another process ({identity.get('pid')}) has taken over the journal {self.folder}.",
                        safe="what is in the journal stays; this process adds nothing more.",
                        to_do="nothing, if a newer run of the job is meant to work; otherwise stop it.",
                    )
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")


class JournalReader:
    """Reads a journal from any process on its machine while its owner writes it. `strict`: a position that is gone is
    an error; otherwise it is skipped."""

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        self._folder, self._strict = folder, strict

    def extent(self) -> tuple[int, int]:
        """The oldest position that is there, and the position behind the last durable line."""
        identity = self._identity()
        return identity["first"], identity["end"]

    def bounded(self, start: int, most: int) -> int:
        """The end of an epoch that begins at `start`: whole frames of about `most` bytes, at least one if there is.
        Where there is none, raises the error that keeps the owner from receiving, if there is one."""
        at, identity = self._begin(start)
        if at == identity["end"] and identity["error"]:
            raise errors.from_json(identity["error"])
        with _reading(self._folder) as database:
            ends = "SELECT start + length(lines) AS last FROM frames WHERE start >= ?1"
            fitting = "max(last) FILTER (WHERE last - ?1 <= ?2)"
            row = database.execute(f"SELECT coalesce({fitting}, min(last), ?1) FROM ({ends})", (at, most)).fetchone()
        return int(row[0])

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """All frames from `start` to `end`, both of which lie between frames. Nothing is left out without an error."""
        at, _ = self._begin(start, end)
        with _reading(self._folder) as database:
            wanted = "SELECT start, received, lines, crc FROM frames WHERE start >= ? AND start < ? ORDER BY start"
            for *fields, crc in database.execute(wanted, (at, end)):
                frame = Frame(*fields)
                if frame.start != at or frame.end > end or zlib.crc32(frame.lines) != crc:
                    break
                yield frame
                at = frame.end
        if at < end:
            raise _damaged(self._folder, f" at position {at}")

    def _identity(self) -> dict[str, Any]:
        identity = read_identity(self._folder)
        if not identity:
            raise errors.SystemUnavailable(
                f"The journal {self._folder} has not been opened by a receiver.",
                safe="nothing was read.",
                to_do="run the source in a Job, which receives while it runs; its log says what keeps it from opening.",
            )
        return identity

    def _begin(self, start: int, end: int | None = None) -> tuple[int, dict[str, Any]]:
        """Where reading from `start` to `end` begins, and the journal at this moment."""
        identity = self._identity()
        first, known = identity["first"], identity["end"]
        end = known if end is None else end
        how = ""
        if max(start, end) > known:
            how = f"ends at position {known}, and the checkpoint is at {max(start, end)}"
        elif start < first and start < end and self._strict:
            how = f"begins at position {first}, and position {start} is to be read"
        if how:
            raise errors.PositionsLost(
                f"The journal {self._folder} {how}.",
                safe="nothing was skipped; the job stops before the lines that are missing.",
                to_do="bring the journal back that belongs to this checkpoint (it keeps `keep` bytes of committed lines"
                " for a restore), or give the query another uid to start over with what is there.",
            )
        return max(start, first), identity


def read_identity(folder: Path) -> dict[str, Any]:
    """Whose journal it is, the `id` that tells it from any other that was or will be in this folder, and its `first`
    position and `end`; empty where no receiver has opened it."""
    if not (folder / DATABASE).exists():
        return {}
    with _reading(folder) as database:
        return _identity(database)


def require_same(folder: Path, identity: Mapping[str, Any], job: str, source: str) -> None:
    """Refuse the journal of another source. Positions in a checkpoint mean something in one journal only, and one job
    deletes what another has not read."""
    refuse_newer(f"The journal {folder}", identity.get("version", VERSION), VERSION)
    if identity and (identity["job"], identity["source"]) != (job, source):
        raise errors.ConfigurationError(
            f"The journal {folder} belongs to source {identity['source']!r} of job {identity['job']!r}, not to"
            f" {source!r} of {job!r}.",
            safe="nothing was started; the journal is as it was.",
            to_do="give each source of each job, and each fork of a job, a journal of its own.",
        )


def _connect(folder: Path) -> sqlite3.Connection:
    address = f"{(folder / DATABASE).absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, LOCK_SECONDS, uri=True, isolation_level=None, check_same_thread=False)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[sqlite3.Connection]:
    with _named_errors(folder), contextlib.closing(_connect(folder)) as database:
        yield database


def _identity(database: sqlite3.Connection) -> dict[str, Any]:
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone():
        return {}
    first = "SELECT min(start) FROM frames"
    end = "SELECT start + length(lines) FROM frames ORDER BY start DESC LIMIT 1"
    rows = database.execute(
        f"SELECT *, coalesce(({first}), start) AS first, coalesce(({end}), start) AS end FROM journal"
    )
    return dict(zip((column[0] for column in rows.description), rows.fetchone() or (), strict=False))


@contextlib.contextmanager
def _named_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise _damaged(folder) from error
        if name.startswith("SQLITE_BUSY"):
            raise errors.SystemUnavailable(
                f"The journal {folder} has been locked by another process for {LOCK_SECONDS:g} s.",
                safe="the journal is as it was.",
                to_do="see whether its receiver was stopped in the middle of its work, and end it.",
            ) from error
        full = name == "SQLITE_FULL" or (isinstance(error, OSError) and is_full(error))
        raise (errors.StorageFull if full else errors.LedgerError)(
            f"The journal {folder} could not be written: {getattr(error, 'strerror', None) or error}.",
            safe="what is in it stays; lines that are not in it wait, here and then at their sender.",
            to_do="free some space; it is tried again." if full else "see to the disk; it is tried again.",
        ) from error


def _damaged(folder: Path, where: str = "") -> errors.PositionsLost:
    return errors.PositionsLost(
        f"The journal {folder} is damaged{where}: lines that were received cannot be read.",
        safe="nothing was skipped; the job stops before them.",
        to_do="restore the folder from a copy, or give the source another journal and the query another uid to start"
        " over without those lines.",
    )
