"""What a task does with its rows: one class for each way, chosen by the driver for an output and an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.inflight_log import LogWriter
from penstock.engine.inflight.tee import SideWriter
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from penstock.contracts.sink import TwoPhaseSink, Writer, WriterScope

HASH_COLUMN = "__penstock_hash"


class Route(Enum):
    """Where the rows of an output go."""

    SINK = "sink"  # into a transaction of the sink, left prepared
    COUNT = "count"  # nowhere: counted and summed, to prove a replay
    DIRECT = "direct"  # into the sink and visible at once (at-least-once)
    LOG = "log"  # into the in-flight log alone
    TEE = "tee"  # into the log and, while it keeps up, a transaction of the sink


@dataclass(frozen=True, slots=True)
class Writing:
    """`log` is the folder of log files, `seconds` how long a tee waits for the sink."""

    route: Route = Route.SINK
    log: str = ""
    seconds: float = 0.0


class Channel(ABC):
    """Open from the first row on."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Rows with their hashes in the last column."""

    @abstractmethod
    def finish(self) -> Mapping[str, Any]:
        """No more rows come. What is returned becomes part of the task's answer."""

    @abstractmethod
    def abort(self) -> None:
        """Undo it all; called after any failure."""


class _IntoSink(Channel):
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch.drop_columns([HASH_COLUMN]))

    def finish(self) -> Mapping[str, Any]:
        failpoint("task.written")
        payload = dict(self._writer.pre_commit())
        failpoint("task.prepared")
        return {"payload": payload}

    def abort(self) -> None:
        self._writer.abort()


class _IntoLog(Channel):
    def __init__(self, log: LogWriter, side: SideWriter | None) -> None:
        self._log, self._side = log, side

    def write(self, batch: pa.RecordBatch) -> None:
        if self._side is not None:
            self._side.offer(batch.drop_columns([HASH_COLUMN]))
        self._log.write(batch)

    def finish(self) -> Mapping[str, Any]:
        file = self._log.close()
        failpoint("task.logged")
        payload = None if self._side is None else self._side.finish()
        return {"payload": None if payload is None else dict(payload), "log": file.to_json()}

    def abort(self) -> None:
        if self._side is not None:
            self._side.give_up()
        self._log.discard()


def open_channel(sink: TwoPhaseSink, scope: WriterScope, writing: Writing, schema: pa.Schema) -> Channel:
    """The channel for one writer; called with its first row."""
    match writing.route:
        case Route.SINK:
            return _IntoSink(sink.open_writer(scope))
        case Route.DIRECT:
            return _IntoSink(sink.open_direct_writer(scope))
        case Route.TEE | Route.LOG:
            side = SideWriter(sink, scope, writing.seconds) if writing.route is Route.TEE else None
            return _IntoLog(LogWriter(writing.log, _log_name(scope), schema), side)
    raise AssertionError(writing)


def _log_name(scope: WriterScope) -> str:
    """Unique over all runs and attempts; the epoch and the generation are read from it when leftovers are removed."""
    return (
        f"{scope.epoch:010d}.g{scope.sink.generation:08d}"
        f".a{scope.attempt}.p{scope.partition}.t{scope.task_attempt}.arrow"
    )
