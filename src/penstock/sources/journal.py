"""A journal of received lines on a local disk: what is in it is durable, in order, and can be read again.

    FOLDER/journal.json                  the source and the job it belongs to, its id, its first position
    FOLDER/owner                         the process that appends
    FOLDER/error                         what keeps it from receiving
    FOLDER/lock                          held during every change
    FOLDER/<start>-<end>-<crc>.arrow     the lines between two positions: a sealed file of the in-flight log

A *position* counts bytes of lines. An append writes one file aside, syncs it and gives it its name; so a file is whole
or not there. Its rows are `received` (µs since 1970, UTC) and `lines`, one for each append: many small files are merged
into one, and the files that it covers are deleted.

One process owns a journal: the last that opened it. Every change is made under the lock by the owner, so an earlier
owner that wakes up cannot add or delete anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from penstock.checkpoint.inflight import LogFile, LogWriter, read_log
from penstock.deadline import Deadline
from penstock.errors import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerFromTheFuture,
    PenstockError,
    PositionsLost,
    StorageFull,
    Superseded,
    SystemUnavailable,
    from_json,
)
from penstock.failpoints import failpoint
from penstock.storage.local import LocalStorage, LocalTree
from penstock.storage.private import make_private, private_file
from penstock.storage.storage import AlreadyExists, is_full

IDENTITY, LOCK, OWNER, ERROR = "journal.json", "lock", "owner", "error"
VERSION = 1
LOCK_SECONDS = 10.0  # the owner holds the lock for one append, or for good where it was stopped inside one

_PAUSE = 0.01
_PAGE = 4096  # of the error, always: an owner on a full disk can still report that the disk is full
_MERGED, _SMALL = 32, (4 << 10, 64 << 10)  # so many files in a row of at most so many bytes become one
_TRIES = 5  # a listing may be taken while files are merged or deleted
_NAME = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{8})\.arrow")


class Frame(NamedTuple):
    """Lines that became durable together."""

    start: int
    received: int
    lines: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.lines)


class Segment(NamedTuple):
    """A file of the journal, by its name."""

    start: int
    end: int
    crc: int

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}-{self.crc:08x}.arrow"

    def frames(self, folder: Path) -> Iterator[Frame]:
        """`FileNotFoundError` where it is not there any more, `PositionsLost` where it is damaged."""
        at, path = self.start, folder / self.name
        log = LogFile(self.name, path.stat().st_size, self.crc)
        try:
            for batch in read_log(str(folder), log):
                for received, lines in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield Frame(at, received, lines)
                    at += len(lines)
        except LedgerCorrupt as error:
            path.stat()
            raise _damaged(path, at) from error


class Journal:
    """The owner's side. Opening it takes it over from any other process. Not safe for several threads at once.
    `start` is the first position of a new journal, `end` the position behind the last line."""

    end: int

    def __init__(self, folder: Path, *, job: str, source: str, start: int = 0) -> None:
        self.folder = folder
        self._tree, self._token, self._handles = LocalTree(folder), secrets.token_hex(8), contextlib.ExitStack()
        self._unsynced = False
        try:
            with _disk(folder):
                make_private(folder)
                first = claim_journal(folder, job, source, start=start)
                make_private(folder)  # with the file that names its owner
                self._lock, self._owner, self._error = (self._open(name) for name in (LOCK, OWNER, ERROR))
                with self._locked(owned=False):
                    self._take_over(first)
        except BaseException:
            self.close()
            raise

    def append(self, lines: bytes, received: int | None = None) -> int:
        """Add whole lines; they are durable when this returns. `received`: microseconds since 1970. `Superseded` where
        another process has taken over. After any other error `end` tells whether the lines are in; if so, an append of
        nothing makes them durable."""
        with self._locked():
            self._settle()
            if lines:
                at = time.time_ns() // 1000 if received is None else received
                self._segments.append(self._seal([Frame(self.end, at, lines)]))
                self.end += len(lines)
                self._settle()
                failpoint("journal.synced")
                with contextlib.suppress(OSError, PenstockError):  # tried again with the next append
                    self._merge()
        return self.end

    def report(self, error: PenstockError | None) -> None:
        """Let readers know why nothing comes; None when lines come again."""
        with contextlib.suppress(OSError, PenstockError), self._locked():
            self._write_error("" if error is None else error.to_json())

    def trim(self, position: int) -> int:
        """Delete files that end before `position`, except the newest; how many."""
        count = sum(segment.end <= position for segment in self._segments[:-1])
        if count:
            with self._locked():
                self._delete(self._segments[:count])
                del self._segments[:count]
        return count

    def close(self) -> None:
        """Another process may take the journal over at any time, closed or not."""
        self._handles.close()

    def _take_over(self, first: int) -> None:
        self._tree.sync("")  # the owner before may have died before it synced a name
        self._segments = list_segments(self.folder)
        self.end = self._segments[-1].end if self._segments else first
        needed = {segment.name for segment in self._segments}
        for name in self._tree.file_names(""):
            if name not in needed and (name.startswith(".") or _NAME.fullmatch(name)):  # aside, or merged
                self._tree.remove(name)
        self._write_error("")
        os.ftruncate(self._owner, 0)
        os.pwrite(self._owner, json.dumps({"token": self._token, "pid": os.getpid()}).encode(), 0)

    def _seal(self, frames: Sequence[Frame]) -> Segment:
        import pyarrow as pa

        aside = f".{secrets.token_hex(8)}"
        received = pa.array([frame.received for frame in frames], pa.int64())
        lines = pa.array([frame.lines for frame in frames], pa.binary())
        batch = pa.RecordBatch.from_arrays([received, lines], ["received", "lines"])
        writer = LogWriter(str(self.folder), aside, batch.schema)
        try:
            writer.write(batch)
            segment = Segment(frames[0].start, frames[-1].end, writer.close().crc)
            os.chmod(self.folder / aside, 0o600)
            failpoint("journal.written")
            self._tree.rename(aside, segment.name)
        except BaseException:
            writer.discard()
            raise
        self._unsynced = True
        return segment

    def _settle(self) -> None:
        if self._unsynced:
            self._tree.sync("")
            self._unsynced = False

    def _merge(self) -> None:
        for size in _SMALL:
            count = len(list(takewhile(lambda file: file.end - file.start <= size, reversed(self._segments))))  # noqa: B023
            if count >= _MERGED:
                small = self._segments[-count:]
                merged = self._seal([frame for segment in small for frame in segment.frames(self.folder)])
                self._segments[-count:] = [merged]
                self._settle()
                self._delete(small)

    def _delete(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._tree.remove(segment.name)

    @contextlib.contextmanager
    def _locked(self, *, owned: bool = True) -> Iterator[None]:
        """Holds the lock; `owned`: only as the owner."""
        patience = Deadline(LOCK_SECONDS)
        with _disk(self.folder):
            while not _try_lock(self._lock):
                if patience.passed():
                    raise SystemUnavailable(
                        f"The journal {self.folder} has been locked by process {self._read_owner().get('pid')} for"
                        f" {LOCK_SECONDS:g} s.",
                        safe="the journal is as it was.",
                        to_do="see whether that process was stopped in the middle of its work, and end it.",
                    )
                time.sleep(_PAUSE)
            try:
                owner = self._read_owner()
                if owned and owner.get("token") != self._token:
                    raise Superseded(
                        f"Another process ({owner.get('pid')}) has taken over the journal {self.folder}.",
                        safe="what is in the journal stays; this process adds nothing more.",
                        to_do="nothing, if a newer run of the job is meant to work; otherwise stop it.",
                    )
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _read_owner(self) -> dict[str, Any]:
        text = os.pread(self._owner, 1000, 0)
        return dict(json.loads(text)) if text.endswith(b"}") else {}

    def _write_error(self, text: str) -> None:
        page = text.encode()
        os.pwrite(self._error, (page if len(page) <= _PAGE else b"").ljust(_PAGE), 0)

    def _open(self, name: str) -> int:
        handle = private_file(str(self.folder / name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._handles.callback(os.close, handle)
        return handle


class JournalReader:
    """Reads a journal from any process on its machine while its owner writes it. `strict`: a position that is gone is
    an error; otherwise it is skipped."""

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        self._folder, self._strict = folder, strict
        self._durable = -1

    def extent(self) -> tuple[int, int]:
        """The oldest position that is there, and the position behind the last durable line."""
        if (identity := _identity(self._folder)) is None:
            raise SystemUnavailable(
                f"The journal {self._folder} has not been opened by a receiver.",
                safe="nothing was read.",
                to_do="run the source in a Job, which receives while it runs; its log says what keeps it from opening.",
            )
        segments = self._segments()
        if not segments:
            return identity["start"], identity["start"]
        if segments[-1].end > self._durable:
            LocalStorage(self._folder).settle("")  # its owner may not have synced the name yet
            self._durable = segments[-1].end
        return segments[0].start, segments[-1].end

    def bounded(self, start: int, most: int) -> int:
        """The end of an epoch that begins at `start`: whole frames of about `most` bytes, at least one if there is.
        Where there is none, raises the error that keeps the owner from receiving, if there is one."""
        at, known = self._begin(start)
        if at == known and (error := self._error()) is not None:
            raise error
        if known - at <= most:
            return known
        end = at
        for frame in self.frames(at, known):
            if end > at and frame.end - at > most:
                break
            end = frame.end
        return end

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """All frames from `start` to `end`, both of which lie between frames. Nothing is left out without an error."""
        at, _ = self._begin(start, end)
        while (begin := at) < end:
            for frame in self._frames_from(at):
                if frame.start == at and frame.end <= end:
                    yield frame
                    at = frame.end
            if at == begin:
                raise _damaged(self._folder, at)

    def _begin(self, start: int, end: int | None = None) -> tuple[int, int]:
        """Where reading from `start` to `end` begins, and where the journal ends."""
        first, known = self.extent()
        end = known if end is None else end
        if max(start, end) > known:
            raise self._lost(f"ends at position {known}, and the checkpoint is at {max(start, end)}")
        if start < first and start < end and self._strict:
            raise self._lost(f"begins at position {first}, and position {start} is to be read")
        return max(start, first), known

    def _frames_from(self, at: int) -> list[Frame]:
        """The frames of the file that has position `at`."""
        for _ in range(_TRIES):
            segment = next((segment for segment in self._segments() if segment.start <= at < segment.end), None)
            with contextlib.suppress(FileNotFoundError):  # merged or deleted since it was listed
                return [] if segment is None else list(segment.frames(self._folder))
        raise self._lost(f"does not have position {at} any more")

    def _segments(self) -> list[Segment]:
        for _ in range(_TRIES):
            with contextlib.suppress(PositionsLost):
                return list_segments(self._folder)
            time.sleep(_PAUSE)
        return list_segments(self._folder)

    def _error(self) -> PenstockError | None:
        with contextlib.suppress(FileNotFoundError, ValueError):  # a page may be half written
            text = (self._folder / ERROR).read_text(encoding="utf-8").strip()
            return from_json(text) if text else None
        return None

    def _lost(self, how: str) -> PositionsLost:
        return PositionsLost(
            f"The journal {self._folder} {how}.",
            safe="nothing was skipped; the job stops before the lines that are missing.",
            to_do="bring the journal back that belongs to this checkpoint (it keeps `keep` bytes of committed lines for"
            " a restore), or give the query another uid to start over with what is there.",
        )


def list_segments(folder: Path) -> list[Segment]:
    """The files of the journal in order, without those that a merged one covers. `PositionsLost` where one is
    missing."""
    matches = [match for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
    listed = [Segment(int(match[1]), int(match[2]), int(match[3], 16)) for match in matches]
    segments: list[Segment] = []
    for segment in sorted(listed, key=lambda segment: (segment.start, -segment.end)):
        if segments and segment.end <= segments[-1].end:
            continue
        if segments and segment.start != segments[-1].end:
            raise _damaged(folder, segments[-1].end)
        segments.append(segment)
    return segments


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def journal_id(folder: Path) -> str | None:
    """Tells the journal from any other that was or will be in this folder; None where there is none."""
    identity = _identity(folder)
    return None if identity is None else str(identity["id"])


def claim_journal(folder: Path, job: str, source: str, *, create: bool = True, start: int = 0) -> int:
    """See that the journal belongs to this source of this job, and make it so where it is new; its first position.
    Positions in a checkpoint mean something in one journal only, and one job deletes what another has not read."""
    identity = {"version": VERSION, "job": job, "source": source, "id": secrets.token_hex(8), "start": start}
    if create:
        with contextlib.suppress(AlreadyExists):
            LocalStorage(folder).create(IDENTITY, json.dumps(identity).encode())
    recorded = _identity(folder)
    if recorded is None:
        return start
    if recorded["version"] > VERSION:
        raise LedgerFromTheFuture(
            f"The journal {folder} has version {recorded['version']}; this Penstock reads up to {VERSION}.",
            safe="nothing was read or changed.",
            to_do="use the newer version of Penstock that wrote it.",
        )
    if (recorded["job"], recorded["source"]) != (job, source):
        raise ConfigurationError(
            f"The journal {folder} belongs to source {recorded['source']!r} of job {recorded['job']!r}, not to"
            f" {source!r} of {job!r}.",
            safe="nothing was started; the journal is as it was.",
            to_do="give each source of each job, and each fork of a job, a journal of its own.",
        )
    return int(recorded["start"])


def _identity(folder: Path) -> dict[str, Any] | None:
    data = LocalStorage(folder).read(IDENTITY)
    return None if data is None else json.loads(data)


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = is_full(error)
        raise (StorageFull if full else LedgerError)(
            f"The journal {folder} could not be written: {error.strerror or error}.",
            safe="what is in it stays; lines that are not in it wait, here and then at their sender.",
            to_do="free some space; it is tried again." if full else "see to the disk; it is tried again.",
        ) from error


def _damaged(path: Path, position: int) -> PositionsLost:
    return PositionsLost(
        f"{path} is damaged at position {position}: lines that were received cannot be read.",
        safe="nothing was skipped; the job stops before them.",
        to_do="restore the file from a copy, or give the source another journal and the query another uid to start"
        " over without those lines.",
    )
