"""Reading a journal from any process on its machine, while its owner writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import PenstockError, PositionsLost, SystemUnavailable, from_json
from penstock.sources.socket.journal import STATE
from penstock.sources.socket.journal_format import (
    FRAME_BYTES,
    HEADER_BYTES,
    Frame,
    JournalState,
    check_header,
    damaged,
    frame_ends,
    frames,
    next_end,
    read_state_file,
    segment_name,
    segment_start,
)


class JournalReader:
    """`strict`: a position that the journal does not have any more, or not yet, is an error. Otherwise lines that are
    gone are skipped."""

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        self._folder, self._strict = folder, strict

    def start(self) -> int:
        """The oldest position that is there."""
        return self._segments()[0]

    def bounded(self, start: int, most: int) -> int:
        """The end of an epoch that begins at `start`: whole frames of about `most` bytes, at least one if there is.
        Where there is none, raises what keeps the owner from receiving, if anything does."""
        state = self._state()
        start = self._begin(start, state.end, state.end)
        if start == state.end and state.error:
            raise from_json(state.error)
        if state.end - start <= most:
            return state.end
        data = self._read(start, start + max(most, FRAME_BYTES))
        return next_end(data, start) if (last := max(frame_ends(data, start), default=None)) is None else last

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """All frames from `start` to `end`, both of which lie between frames. Nothing is left out without an error."""
        at = self._begin(start, end, self._state().end)
        while at < end:
            data = self._read(at, end)
            reached = at
            for frame in frames(data, at):
                reached = frame.end
                yield frame
            if reached != at + len(data) or not data:
                raise damaged(str(self._folder), reached)
            at = reached

    def _begin(self, start: int, end: int, known: int) -> int:
        """Where reading from `start` to `end` begins, in a journal that is known to end at `known`."""
        if max(start, end) > known:
            raise self._lost(f"ends at position {known}, and the checkpoint is at {max(start, end)}")
        first = self.start()
        if start < first and start < end and self._strict:
            raise self._lost(f"begins at position {first}, and position {start} is to be read")
        return max(start, first)

    def _state(self) -> JournalState:
        state = read_state_file(self._folder / STATE)
        if state is None:
            raise _not_open(self._folder)
        return state

    def _read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, or to the end of the segment that `start` is in."""
        segments = self._segments()
        index = max((number for number, one in enumerate(segments) if one <= start), default=None)
        if index is None:
            raise self._lost(f"begins at position {segments[0]}, and position {start} is to be read")
        begin, path = segments[index], self._folder / segment_name(segments[index])
        stop = min(end, segments[index + 1]) if index + 1 < len(segments) else end
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise self._lost(f"does not have {path.name} any more, and position {start} is to be read") from None
        try:
            check_header(os.pread(handle, HEADER_BYTES, 0), begin, str(path))
            return _pread(handle, stop - start, HEADER_BYTES + start - begin)
        finally:
            os.close(handle)

    def _segments(self) -> list[int]:
        try:
            found = sorted(one for one in map(segment_start, os.listdir(self._folder)) if one is not None)
        except FileNotFoundError:
            found = []
        if not found:
            raise _not_open(self._folder)
        return found

    def _lost(self, how: str) -> PositionsLost:
        return PositionsLost(
            f"The journal {self._folder} {how}.",
            safe="nothing was skipped; the job stops before the lines that are missing.",
            to_do="bring the journal back that belongs to this checkpoint (it keeps `keep` bytes of committed lines for"
            " a restore), or give the query another uid to start over with what is there.",
        )


def _pread(handle: int, length: int, at: int) -> bytes:
    parts = []
    while length > 0 and (part := os.pread(handle, length, at)):
        parts.append(part)
        length, at = length - len(part), at + len(part)
    return b"".join(parts)


def _not_open(folder: Path) -> PenstockError:
    return SystemUnavailable(
        f"The journal {folder} has not been opened by a receiver.",
        safe="nothing was read.",
        to_do="run the source in a Job, which receives while it runs; see its log for what keeps it from opening.",
    )
