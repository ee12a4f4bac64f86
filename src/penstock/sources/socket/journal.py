"""A journal of received lines on a local disk: what is in it is durable, in order, and can be read again.

    FOLDER/journal.json         which source of which job it belongs to, for ever
    FOLDER/lock                 held while somebody appends, deletes or takes over
    FOLDER/state                who owns it now, how far it is durable, see `journal_format`
    FOLDER/<position>.lines     segments, see `journal_format`

One process owns a journal: the last that opened it. Every change is made under the lock, by the owner alone, so a
former owner that wakes up cannot add, delete or acknowledge anything.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.deadline import Deadline
from penstock.errors import (
    ConfigurationError,
    LedgerError,
    LedgerFromTheFuture,
    PenstockError,
    StorageFull,
    Superseded,
    SystemUnavailable,
)
from penstock.failpoints import failpoint
from penstock.sources.socket.journal_format import (
    HEADER_BYTES,
    JournalState,
    check_header,
    damaged,
    frames,
    pack_frame,
    pack_header,
    read_state,
    segment_name,
    segment_start,
    write_state,
)
from penstock.storage import durable
from penstock.storage.local import LocalStorage
from penstock.storage.private import make_private, private_file
from penstock.storage.storage import AlreadyExists

IDENTITY = "journal.json"
LOCK = "lock"
STATE = "state"
VERSION = 1

#: Bytes of a segment: what is deleted at a time.
SEGMENT_BYTES = 16 << 20
#: Seconds another process may hold the lock: it does so for one append, or for good when it was stopped inside one.
LOCK_SECONDS = 10.0
_LOCK_PAUSE = 0.01

_data_sync = getattr(os, "fdatasync", os.fsync)


class Journal:
    """The owner's hand on a journal. Opening it takes it over from any other process and cuts off a torn end.

    `durable=False` leaves out syncs, for lines that nobody promises to keep. `start` is the first position of a new
    journal. Not safe for several threads at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job: str,
        source: str,
        durable: bool = True,
        start: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.folder = folder
        self._durable, self._segment_bytes = durable, segment_bytes
        self._owner = secrets.token_hex(8)
        self._handles = contextlib.ExitStack()
        self._tail = -1
        self.unannounced = False
        try:
            with _disk(folder):
                make_private(folder)
                claim_journal(folder, job, source)
                make_private(folder)  # with the file that says whose it is
                self._lock = self._open(folder / LOCK)
                self._state = self._open(folder / STATE)
                with self._locked():
                    self._take_over(start)
        except BaseException:
            self.close()
            raise

    @property
    def end(self) -> int:
        """Everything before this position is durable."""
        return self._end

    @property
    def start(self) -> int:
        """The oldest position that is still there."""
        return self._segments[0]

    def append(self, payload: bytes, received: int | None = None) -> int:
        """Add whole lines; they are durable when this returns, and only then does anybody learn of them. `received`:
        microseconds since 1970. Raises `Superseded` where another process has taken over. After any other error the
        journal is as it was.

        Where readers could not be told, that is no error, for the lines are in: they are `unannounced` until
        `announce`."""
        at = time.time_ns() // 1000 if received is None else received
        frame = pack_frame(payload, payload.count(b"\n"), at)
        with _disk(self.folder), self._locked():
            self._require_ownership()
            if self._end - self._segments[-1] >= self._segment_bytes:
                self._roll()
            try:
                self._write(frame)
            except OSError:
                # What a failed sync has left behind may look whole and still not be on the disk.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._tail, HEADER_BYTES + self._end - self._segments[-1])
                raise
            self._end += len(frame)
            self.unannounced = True
            failpoint("journal.synced")
            with contextlib.suppress(OSError):
                self._write_state("")
        return self._end

    def announce(self) -> None:
        """Let readers know of what is `unannounced`. Raises what `append` does."""
        with _disk(self.folder), self._locked():
            self._require_ownership()
            self._write_state("")

    def complain(self, error: PenstockError | None) -> None:
        """Let readers know why nothing comes; None when all is well again."""
        with contextlib.suppress(OSError, PenstockError), self._locked():
            self._require_ownership()
            self._write_state("" if error is None else error.to_json())

    def trim(self, position: int) -> int:
        """Delete segments that end before `position`; how many."""
        last = sum(one <= position for one in self._segments[1:])
        if last == 0:
            return 0
        with _disk(self.folder), self._locked():
            self._require_ownership()
            for start in self._segments[:last]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.folder / segment_name(start))
            del self._segments[:last]
        return last

    def close(self) -> None:
        """The journal stays its owner's; another process may take it over at any time, closed or not."""
        self._handles.close()
        if self._tail >= 0:
            os.close(self._tail)
            self._tail = -1

    def _take_over(self, start: int) -> None:
        before = read_state(self._state) if os.fstat(self._state).st_size else None
        if self._durable:
            durable.sync(self.folder)  # the owner before may have died before it synced the name of a segment
        self._segments = sorted(one for one in map(segment_start, os.listdir(self.folder)) if one is not None)
        if not self._segments:
            self._create_segment(start)
            self._segments.append(start)
        for begin, following in zip(self._segments, self._segments[1:], strict=False):
            path = self.folder / segment_name(begin)
            if path.stat().st_size - HEADER_BYTES != following - begin:
                raise damaged(str(path), begin)
        self._end = self._tail_end()
        if before is not None and self._end < before.end:  # more than a torn end is missing
            raise damaged(str(self.folder / segment_name(self._segments[-1])), self._end)
        self._open_tail(self._segments[-1])
        os.ftruncate(self._tail, HEADER_BYTES + self._end - self._segments[-1])
        self._sync(self._tail)
        self._write_state("")
        self._sync(self._state)

    def _tail_end(self) -> int:
        """Where the whole frames of the newest segment end."""
        start = self._segments[-1]
        path = self.folder / segment_name(start)
        with path.open("rb") as file:
            check_header(file.read(HEADER_BYTES), start, str(path))
            data = file.read()
        end = start
        for frame in frames(data, start):
            end = frame.end
        return end

    def _roll(self) -> None:
        """All or nothing: were the new segment known and the old one still open, lines would be written over."""
        self._create_segment(self._end)
        self._open_tail(self._end)
        if self._segments[-1] != self._end:
            self._segments.append(self._end)

    def _create_segment(self, start: int) -> None:
        target = self.folder / segment_name(start)
        aside = target.with_name(f".{target.name}.tmp")
        with open(aside, "wb", opener=private_file) as file:
            file.write(pack_header(start))
            file.flush()
            self._sync(file.fileno())
        os.rename(aside, target)
        if self._durable:
            durable.sync(self.folder)

    def _open_tail(self, start: int) -> None:
        before, self._tail = self._tail, os.open(self.folder / segment_name(start), os.O_RDWR)
        if before >= 0:
            os.close(before)

    def _write(self, frame: bytes) -> None:
        at = HEADER_BYTES + self._end - self._segments[-1]
        left = memoryview(frame)
        while left:
            written = os.pwrite(self._tail, left, at)
            left, at = left[written:], at + written
        failpoint("journal.written")
        self._sync(self._tail)

    def _sync(self, handle: int) -> None:
        if self._durable:
            _data_sync(handle)

    def _write_state(self, error: str) -> None:
        write_state(self._state, JournalState(self._owner, os.getpid(), self._end, error))
        if not error:
            self.unannounced = False

    def _require_ownership(self) -> None:
        state = read_state(self._state)
        if state is None and self.unannounced:
            return  # half of a page, by our own hand: whoever takes over writes a whole one
        if state is None or state.owner != self._owner:
            raise Superseded(
                f"Another process ({'unknown' if state is None else state.pid}) has taken over the journal"
                f" {self.folder}.",
                safe="what is in the journal stays; this process adds nothing more.",
                to_do="nothing, if a newer run of the job is meant to work; otherwise stop it.",
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        patience = Deadline(LOCK_SECONDS)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if patience.passed():
                    raise self._lock_held() from None
                time.sleep(_LOCK_PAUSE)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _lock_held(self) -> SystemUnavailable:
        state = read_state(self._state)
        holder = "another process" if state is None else f"process {state.pid}"
        return SystemUnavailable(
            f"The journal {self.folder} has been locked by {holder} for {LOCK_SECONDS:g} s.",
            safe="the journal is as it was.",
            to_do="see whether that process was stopped in the middle of its work, and end it.",
        )

    def _open(self, path: Path) -> int:
        handle = private_file(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._handles.callback(os.close, handle)
        return handle


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Turns the operating system's refusals into ours."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (StorageFull if full else LedgerError)(
            f"The journal {folder} could not be written: {error.strerror or error}.",
            safe="what is in it stays; lines that are not in it wait, here and then at their sender.",
            to_do="free some space; it is tried again." if full else "see to the disk; it is tried again.",
        ) from error


def journal_id(folder: Path) -> str | None:
    """What tells the journal from any other that was or will be in this folder; None where there is none, or one of an
    earlier version."""
    data = LocalStorage(folder).read(IDENTITY)
    return None if data is None else json.loads(data).get("id")


def claim_journal(folder: Path, job: str, source: str, *, create: bool = True) -> None:
    """See that the journal belongs to this source of this job, and make it so where it is new. Positions in a
    checkpoint mean something in one journal only, and one job deletes what another has not read."""
    storage = LocalStorage(folder)
    mine = {"version": VERSION, "job": job, "source": source, "id": secrets.token_hex(8)}
    if create:
        with contextlib.suppress(AlreadyExists):
            storage.create(IDENTITY, json.dumps(mine).encode())
    data = storage.read(IDENTITY)
    if data is None:
        return
    found = json.loads(data)
    if int(found.get("version", 0)) > VERSION:
        raise LedgerFromTheFuture(
            f"The journal {folder} has version {found['version']}; this Penstock reads up to {VERSION}.",
            safe="nothing was read or changed.",
            to_do="use the newer version of Penstock that wrote it.",
        )
    if (found.get("job"), found.get("source")) != (job, source):
        raise ConfigurationError(
            f"The journal {folder} belongs to source {found.get('source')!r} of job {found.get('job')!r}, not to"
            f" {source!r} of {job!r}.",
            safe="nothing was started; the journal is as it was.",
            to_do="give each source of each job, and each fork of a job, a journal of its own.",
        )
