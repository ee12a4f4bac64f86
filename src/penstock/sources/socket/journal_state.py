"""Who owns a journal and how far it is durable: one page, replaced in place, for other processes on this machine.

It tells living processes what is true now; after a crash the segments say it. So it is never synced. It always has its
full size, so that an owner on a full disk can still say that the disk is full.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

_PAGE = 4096
_HEAD = struct.Struct(">II")  # CRC-32 of the JSON, its length
_TRIES = 100  # a reader may meet a page that is being replaced
_PAUSE = 0.002


@dataclass(frozen=True, slots=True)
class State:
    """`end`: all before it is durable. `error`: what keeps the owner from receiving, as `PenstockError.to_json`."""

    owner: str
    pid: int
    end: int
    error: str = ""


def write(handle: int, state: State) -> None:
    body = json.dumps(asdict(state)).encode()
    if len(body) > _PAGE - _HEAD.size:
        body = json.dumps(asdict(State(state.owner, state.pid, state.end))).encode()
    page = (_HEAD.pack(zlib.crc32(body), len(body)) + body).ljust(_PAGE, b"\0")
    if os.pwrite(handle, page, 0) != len(page):
        raise OSError(errno.EIO, "the state was written in part")


def parse(page: bytes) -> State | None:
    """None for a page that is not whole."""
    if len(page) < _HEAD.size:
        return None
    crc, length = _HEAD.unpack_from(page)
    body = page[_HEAD.size : _HEAD.size + length]
    if len(body) != length or zlib.crc32(body) != crc:
        return None
    return State(**json.loads(body))


def read(handle: int) -> State | None:
    for _ in range(_TRIES):
        page = os.pread(handle, _PAGE, 0)
        state = parse(page)
        if state is not None or not page:
            return state
        time.sleep(_PAUSE)
    return None


def read_file(path: Path) -> State | None:
    """None where there is none, or none that is whole."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read(handle)
    finally:
        os.close(handle)
