"""A steady load and its reader, each in a process of its own, and what the reader saw."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream_rows import columns
from topic_content import Ints

HERE = Path(__file__).parent
_END_SECONDS = 60.0


class Helper:
    """A script that works until it is told to end by its input."""

    def __init__(self, script: str, **given: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def end(self, last_word: str = "") -> str:
        """Tell it, and wait for its answer."""
        answer, _ = self._process.communicate(last_word, timeout=_END_SECONDS)
        if self._process.returncode != 0:
            raise SystemExit(f"{self._process.args!r} failed with {self._process.returncode}")
        return answer

    def abandon(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Seen:
    """Every row in the order in which the reader saw it; times in nanoseconds since 1970."""

    ids: Ints
    made: Ints
    seen: Ints

    @classmethod
    def load(cls, file: Path) -> Seen:
        with np.load(file) as found:
            ids, made = columns(found["values"].tobytes())
            return cls(ids, made, np.repeat(found["moments"], found["counts"]))

    def latencies_ms(self, begin: float, end: float) -> Any:
        """Of the rows made between two moments, in seconds since 1970."""
        wanted = (self.made >= begin * 1e9) & (self.made < end * 1e9)
        return (self.seen[wanted] - self.made[wanted]) / 1e6

    def longest_silence(self, begin: float, end: float) -> float:
        """The most seconds without a row between two moments, of which at least the end is within."""
        moments = np.unique(self.seen) / 1e9
        after = np.flatnonzero((moments[1:] >= begin) & (moments[:-1] <= end))
        return float(np.diff(moments)[after].max(initial=0.0))


class Stream:
    """A load into one topic and a reader of another."""

    def __init__(self, load: Helper, reader: Helper, file: Path) -> None:
        self._load, self._reader, self._file = load, reader, file
        self.rows = 0

    def finish(self) -> Seen:
        """End the load, and have the reader see all of it; fewer where rows do not come."""
        self.rows = int(self._load.end())
        self._reader.end(f"{self.rows}\n")
        return Seen.load(self._file)


@contextmanager
def helper(script: str, **given: Any) -> Iterator[Helper]:
    """One that is gone when the block ends."""
    started = Helper(script, **given)
    try:
        yield started
    finally:
        started.abandon()


@contextmanager
def stream(servers: str, source: str, target: str, folder: Path, rate: int) -> Iterator[Stream]:
    """Timed rows into `source` from now on, and everything that comes out of `target`."""
    file = folder / "seen.npz"
    with (
        helper("stream_reader.py", servers=servers, topic=target, file=str(file)) as reader,
        helper("stream_load.py", servers=servers, topic=source, rate=rate, rows="timed") as load,
    ):
        yield Stream(load, reader, file)
