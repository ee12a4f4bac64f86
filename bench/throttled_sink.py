"""A real sink behind a valve: so many rows a second and no more, for as long as a file says so.

The benchmark's process turns the valve by writing the file; writers, in tasks and in the driver alike, look at it every
few milliseconds. Without a limit rows pass as they come, untouched.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_LOOK_EVERY = 0.01
_SLICE_SECONDS = 0.05  # rows handed over at once, in time: short against an epoch, long against the cost of a call


@dataclass(frozen=True)
class Valve:
    """A limit in rows a second, over all writers together, that every process of this machine can read."""

    file: str

    def limit(self) -> float | None:
        """None: no limit."""
        text = Path(self.file).read_text()
        return float(text) if text else None

    def turn(self, limit: float | None) -> None:
        """Renamed into place: nobody reads half a number."""
        beside = Path(f"{self.file}.new")
        beside.write_text("" if limit is None else repr(limit))
        beside.rename(self.file)


@dataclass(frozen=True)
class ThrottledSink(TwoPhaseSink):
    """`inner` behind `valve`. Each of the `writers` that work side by side gets an equal share of the limit."""

    inner: TwoPhaseSink
    valve: Valve
    writers: int

    def shape(self, frame: DataFrame) -> DataFrame:
        return self.inner.shape(frame)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        return self.inner.check(context, uid)

    def describe(self) -> str:
        return f"{self.inner.describe()}, throttled"

    def open_writer(self, scope: WriterScope) -> Writer:
        return ThrottledWriter(self.inner.open_writer(scope), self.valve, self.writers)

    def open_committer(self, scope: SinkScope) -> Committer:
        return self.inner.open_committer(scope)


class ThrottledWriter(Writer):
    def __init__(self, inner: Writer, valve: Valve, writers: int) -> None:
        self._inner, self._valve, self._writers = inner, valve, writers
        self._due = 0.0  # when the sink is ready for more

    def write(self, batch: pa.RecordBatch) -> None:
        done = 0
        while done < batch.num_rows:
            limit = self._wait()
            if limit is None:
                self._inner.write(batch.slice(done))
                return
            share = limit / self._writers
            part = batch.slice(done, max(1, round(share * _SLICE_SECONDS)))
            self._inner.write(part)
            done += part.num_rows
            self._due = max(self._due, time.monotonic()) + part.num_rows / share

    def pre_commit(self) -> Mapping[str, Any]:
        self._wait()  # the rows handed over last take their time too
        return self._inner.pre_commit()

    def abort(self) -> None:
        self._inner.abort()

    def _wait(self) -> float | None:
        """The limit, once the sink is ready for more; at once when there is none any more."""
        while (limit := self._valve.limit()) is not None:
            left = self._due - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _LOOK_EVERY))
        return limit
