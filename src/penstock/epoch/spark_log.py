"""Spark's own log of a query: `offsets/N` (the barrier) and `commits/N`, read, and completed where recovery must.

Batch N is pending when `offsets/N` exists and `commits/N` does not. After every task of N has finished, state version
N+1 is on disk; writing `commits/N` then makes Spark go on with N+1 as if it had not died in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from penstock.epoch.storage import AlreadyExists, Storage
from penstock.errors import LedgerCorrupt

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""Spark's setting that makes commits list state ids; only 1 does not."""

END_OF_TIME = 253_402_300_799_999
"""In milliseconds: the last one of the year 9999, where Spark's own dates end."""

_V1 = "v1"


@dataclass(frozen=True, slots=True)
class Barrier:
    """What `offsets/N` says: a digest of it all, Spark's metadata, and an offset a source (None: no data yet)."""

    digest: str
    metadata: dict[str, Any]
    offsets: tuple[Any, ...]


class SparkLog:
    """One query's checkpoint folder, as far as recovery needs it."""

    def __init__(self, storage: Storage, *, state_format: str = "1") -> None:
        self._storage = storage
        self._state_format = state_format
        self._query_id: str | None = None

    @property
    def location(self) -> str:
        return self._storage.location

    def query_id(self) -> str | None:
        """The id Spark gave this checkpoint, None before its first start. It never changes once given."""
        if self._query_id is not None:
            return self._query_id
        data = self._storage.read("metadata")
        if data is None:
            return None
        try:
            self._query_id = str(json.loads(data)["id"])
            return self._query_id
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable("metadata") from error

    def next_epoch(self) -> tuple[int, bool]:
        """The epoch that comes next, and whether its barrier is written already."""
        barrier = max(self._numbers("offsets"), default=-1)
        committed = max(self._numbers("commits"), default=-1)
        return (barrier, True) if barrier > committed else (committed + 1, False)

    def barrier(self, epoch: int) -> Barrier | None:
        """The positions at which epoch `epoch` ends."""
        data = self._storage.read(f"offsets/{epoch}")
        if data is None:
            return None
        try:
            _, metadata, *offsets = data.decode().rstrip("\n").split("\n")
            parsed = tuple(None if line == "-" else json.loads(line) for line in offsets)
            return Barrier(hashlib.sha256(data).hexdigest(), json.loads(metadata), parsed)
        except ValueError as error:
            raise self._unreadable(f"offsets/{epoch}") from error

    def committed_watermark(self, epoch: int) -> int | None:
        """The watermark in `commits/N`, None where there is no such file or it is of a format we do not know."""
        data = self._storage.read(f"commits/{epoch}")
        return None if data is None else _watermark(data)

    def finish(self, epoch: int, watermark: int | None) -> bool:
        """Write `commits/N`, durably. False, and nothing written, where that would be a guess: the format is not v1,
        the state store's format lists ids of its own, or the watermark is not known."""
        barrier = self.barrier(epoch)
        if watermark is None or barrier is None or not self._format_known(epoch, barrier):
            return False
        # Spark on a local disk keeps a checksum file beside each; one left by a half-done write would condemn ours.
        self._storage.delete(f"commits/.{epoch}.crc")
        body = json.dumps({"nextBatchWatermarkMs": watermark}, separators=(",", ":"))
        with contextlib.suppress(AlreadyExists):
            self._storage.create(f"commits/{epoch}", f"{_V1}\n{body}".encode())
        return True

    def end_of_time(self, epoch: int) -> None:
        """Write `offsets/N` with the positions of the epoch before and a watermark beyond every event, replacing one
        that is there: an epoch that reads nothing and closes every window. Only for an epoch that was not begun."""
        before = self._storage.read(f"offsets/{epoch - 1}")
        if before is None:
            raise self._unreadable(f"offsets/{epoch - 1}")
        version, metadata, *offsets = before.decode().rstrip("\n").split("\n")
        changed = {**json.loads(metadata), "batchWatermarkMs": END_OF_TIME}
        self._storage.delete(f"offsets/.{epoch}.crc")
        self._storage.delete(f"offsets/{epoch}")
        lines = [version, json.dumps(changed, separators=(",", ":")), *offsets]
        self._storage.create(f"offsets/{epoch}", "\n".join(lines).encode())

    def _format_known(self, epoch: int, barrier: Barrier) -> bool:
        recorded = barrier.metadata.get("conf", {}).get(STATE_FORMAT, self._state_format)
        if recorded != "1":
            return False
        before = self._storage.read(f"commits/{epoch - 1}") if epoch else None
        return before is None or _watermark(before) is not None

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self._storage.list(folder) if name.isdigit()]

    def _unreadable(self, name: str) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"Spark's checkpoint file {self.location}/{name} cannot be read.",
            safe="nothing was started or changed.",
            to_do="restore the file from a copy of the checkpoint.",
        )


def _watermark(data: bytes) -> int | None:
    """The watermark of a v1 commit with nothing in it that we do not know how to write."""
    version, _, body = data.decode(errors="replace").partition("\n")
    if version != _V1:
        return None
    with contextlib.suppress(ValueError):
        parsed = json.loads(body)
        if isinstance(parsed, dict) and parsed.keys() == {"nextBatchWatermarkMs"}:
            return int(parsed["nextBatchWatermarkMs"])
    return None
