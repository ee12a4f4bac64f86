"""The bytes of a journal: segments of frames, and a page of state. `journal` writes, `journal_reader` reads them.

    <start of the segment, 20 digits>.lines
        header   32 bytes: magic, version, flags, position of the first frame, CRC-32 of the header
        frame    20 bytes: CRC-32 of all that follows in the frame, length, lines, received (µs since 1970, UTC)
                 then `length` bytes: whole lines, each with its newline
        frame    …

A *position* counts the bytes of frames since the journal began, headers of segments left out. So a position tells where
to look in a segment's file, and segments follow one another without a gap. Numbers are big-endian.

Beside the segments is one page that says who owns the journal and how far it is durable, replaced in place, for other
processes on this machine. It tells living processes what is true now; after a crash the segments say it. So it is never
synced. It always has its full size, so that an owner on a full disk can still say that the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.errors import LedgerFromTheFuture, PositionsLost

_STATE_BYTES = 4096
_STATE_HEAD = struct.Struct(">II")  # CRC-32 of the JSON, its length
_STATE_TRIES = 100  # a reader may meet a page that is being replaced
_STATE_PAUSE = 0.002

MAGIC = b"PSTKLINE"
VERSION = 1
SUFFIX = ".lines"

_HEADER = struct.Struct(">8sHHQ8x")  # the CRC follows
_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">IIQ")  # what the CRC covers first: length, lines, received

HEADER_BYTES = _HEADER.size + _CRC.size
FRAME_BYTES = _CRC.size + _FRAME.size


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines that became durable together. `end` is the position behind it."""

    start: int
    end: int
    lines: int
    received: int
    payload: bytes


def segment_name(start: int) -> str:
    return f"{start:020d}{SUFFIX}"


def segment_start(name: str) -> int | None:
    """The position a segment's name says; None for any other file."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdigit() else None


def pack_header(start: int) -> bytes:
    body = _HEADER.pack(MAGIC, VERSION, 0, start)
    return body + _CRC.pack(zlib.crc32(body))


def check_header(data: bytes, start: int, path: str) -> None:
    """Raise where this is not the header of a segment that begins at `start` and that this version can read."""
    if len(data) >= HEADER_BYTES and data[:8] == MAGIC:
        _, version, _, begins = _HEADER.unpack_from(data)
        if version > VERSION:
            raise LedgerFromTheFuture(
                f"{path} has version {version}; this Penstock reads up to {VERSION}.",
                safe="nothing was read or changed.",
                to_do="use the newer version of Penstock that wrote it.",
            )
        if _CRC.unpack_from(data, _HEADER.size)[0] == zlib.crc32(data[: _HEADER.size]) and begins == start:
            return
    raise damaged(path, start)


def pack_frame(payload: bytes, lines: int, received: int) -> bytes:
    head = _FRAME.pack(len(payload), lines, received)
    return _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + head + payload


def frame_ends(data: bytes, start: int) -> Iterator[int]:
    """The position behind each frame in `data`, which begins with one at `start`. Looks at lengths only."""
    at = 0
    while at + FRAME_BYTES <= len(data):
        at += FRAME_BYTES + int(_FRAME.unpack_from(data, at + _CRC.size)[0])
        if at > len(data):
            return
        yield start + at


def next_end(data: bytes, start: int) -> int:
    """The position behind the frame whose first bytes are in `data`."""
    return start + FRAME_BYTES + int(_FRAME.unpack_from(data, _CRC.size)[0])


def frames(data: bytes, start: int) -> Iterator[Frame]:
    """The frames in `data`, as far as they are whole and true; it ends without a word at the first that is not."""
    at = 0
    while at + FRAME_BYTES <= len(data):
        (crc,) = _CRC.unpack_from(data, at)
        length, lines, received = _FRAME.unpack_from(data, at + _CRC.size)
        end = at + FRAME_BYTES + length
        if end > len(data) or zlib.crc32(memoryview(data)[at + _CRC.size : end]) != crc:
            return
        yield Frame(start + at, start + end, lines, received, data[at + FRAME_BYTES : end])
        at = end


def damaged(path: str, position: int) -> PositionsLost:
    return PositionsLost(
        f"{path} is damaged at position {position}: lines that were received cannot be read.",
        safe="nothing was skipped; the job stops before them.",
        to_do="restore the file from a copy, or give the source another journal and the query another uid to start"
        " over without those lines.",
    )


@dataclass(frozen=True, slots=True)
class JournalState:
    """`end`: all before it is durable. `error`: what keeps the owner from receiving, as `PenstockError.to_json`."""

    owner: str
    pid: int
    end: int
    error: str = ""


def write_state(handle: int, state: JournalState) -> None:
    body = json.dumps(asdict(state)).encode()
    if len(body) > _STATE_BYTES - _STATE_HEAD.size:
        body = json.dumps(asdict(JournalState(state.owner, state.pid, state.end))).encode()
    page = (_STATE_HEAD.pack(zlib.crc32(body), len(body)) + body).ljust(_STATE_BYTES, b"\0")
    if os.pwrite(handle, page, 0) != len(page):
        raise OSError(errno.EIO, "the state was written in part")


def parse_state(page: bytes) -> JournalState | None:
    """None for a page that is not whole."""
    if len(page) < _STATE_HEAD.size:
        return None
    crc, length = _STATE_HEAD.unpack_from(page)
    body = page[_STATE_HEAD.size : _STATE_HEAD.size + length]
    if len(body) != length or zlib.crc32(body) != crc:
        return None
    return JournalState(**json.loads(body))


def read_state(handle: int) -> JournalState | None:
    for _ in range(_STATE_TRIES):
        page = os.pread(handle, _STATE_BYTES, 0)
        state = parse_state(page)
        if state is not None or not page:
            return state
        time.sleep(_STATE_PAUSE)
    return None


def read_state_file(path: Path) -> JournalState | None:
    """None where there is none, or none that is whole."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_state(handle)
    finally:
        os.close(handle)
