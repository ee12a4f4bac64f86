"""Spark's own log of a query: `offsets/N` (the barrier) and `commits/N`, read, and completed where recovery must.

Batch N is pending when `offsets/N` exists and `commits/N` does not. After every task of N has finished, state version
N+1 is on disk; writing `commits/N` then makes Spark go on with N+1 as if it had not died in between.

Spark syncs none of its files. After a power cut the newest ones may be gone, or there and empty or cut (*torn*); a torn
file counts as not there. What the ledger has of them is written again by `log_repair`. The same holds for the first
file of a source, and for the log of one that reads files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import StateIds
from penstock.checkpoint.layout import COMMITS, OFFSETS, QUERY_ID, SOURCES, STATE
from penstock.errors import LedgerCorrupt
from penstock.storage.storage import AlreadyExists, Storage
from penstock.storage.tree import checksum_file

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"  # 2: state files and commits carry ids
END_OF_TIME = 253_402_300_799_999  # in milliseconds: the last one of the year 9999, where Spark's own dates end

# Ours among the settings of a barrier, of which Spark reads those that it knows.
_DRAIN = "penstock.drain"
_LANES = "penstock.lanes"
_LANES_VERSION = 1

_V1 = "v1"
_COMMIT = ("nextBatchWatermarkMs", "stateUniqueIds", "sinkMetadataMap")
_VERSION = re.compile(rb"^v\d+$")
_NOTE = re.compile(r"^(\d+)(?:\.compact)?$")  # of a source: where it began, or files it reads


@dataclass(frozen=True, slots=True)
class LaneNote:
    """In a barrier that a real-time query has cut: `query` is the id of its history, `topics` the ids of its marks
    topics by source topic. `parts`, by lane, where a row of the source was visible in part: how many rows of it, and
    their digest. `marks`, by lane, where the position is beyond the mark, because the rows between gave none: offset,
    part and digest of the mark. `closed`: the lanes had no owner any more, so no row became visible after it."""

    query: str
    topics: Mapping[str, str]
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    marks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What `commits/N` says. `ids` are None in format 1 of the state. `sinks` is what version 3 of the file notes of
    the query's sinks, None in the versions before."""

    watermark: int
    ids: StateIds | None = None
    sinks: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, data: bytes) -> Commit | None:
        """None where there is anything in it that we do not know how to write."""
        version, _, text = data.partition(b"\n")
        try:
            body = json.loads(text)
            commit = cls(*(body.pop(key, None) for key in _COMMIT))
        except (ValueError, TypeError, AttributeError):
            return None
        known = isinstance(commit.watermark, int) and not body
        return commit if known and version.decode(errors="replace") == commit.version else None

    @property
    def version(self) -> str:
        return "v3" if self.sinks is not None else _V1 if self.ids is None else "v2"

    @property
    def format(self) -> str:
        """Of the state."""
        return "1" if self.ids is None else "2"

    def text(self) -> str:
        """As Spark writes it."""
        fields = zip(_COMMIT, (self.watermark, self.ids, self.sinks), strict=True)
        return f"{self.version}\n{compact({key: value for key, value in fields if value is not None})}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """What `offsets/N` says: a digest of it all, Spark's metadata, an offset a source (None: no data yet), and all of
    it as Spark wrote it."""

    digest: str
    metadata: dict[str, Any]
    offsets: tuple[Any, ...]
    text: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Where it was asked for: the files in which sources that read files have noted what their positions mean."""

    @property
    def cut(self) -> tuple[Any, ...]:
        """What makes it this barrier and no other, however it is written. Spark's settings are left out: a restart puts
        what a newer version knows beside those that an older one has written."""
        return (*(self.metadata.get(key) for key in ("batchWatermarkMs", "batchTimestampMs")), self.offsets)

    @property
    def drains(self) -> str | None:
        """The id of the query whose drain cut this barrier at the end of time; None where a source did. Later barriers
        carry the same watermark, and a restored copy has another id, so neither tells."""
        conf: dict[str, str] = self.metadata.get("conf", {})
        return conf.get(_DRAIN)

    @property
    def lanes(self) -> LaneNote | None:
        """What a real-time query has noted; None where a micro-batch, or the end of the lanes, has cut the barrier."""
        text = self.metadata.get("conf", {}).get(_LANES)
        if text is None:
            return None
        body = json.loads(text)
        layout.refuse_newer("A barrier's note of its lanes", body["version"], _LANES_VERSION)
        return LaneNote(body["query"], body["topics"], body["parts"], body["marks"], body["closed"])


class SparkLog:
    """One query's checkpoint folder, as far as recovery needs it."""

    def __init__(self, storage: Storage, *, state_format: str = "1", known: bool = True, positions: int = 0) -> None:
        """`known`: whether the format that this version of Spark writes is known even where there is no example, and
        `state_format` then that of the state. `positions`: how many the program's barriers have; 0 where that is not
        known."""
        self.storage, self._known, self.state_format = storage, known, state_format
        self._positions, self._counted = max(1, positions), positions == 1
        self._query_id: str | None = None
        self._synced: bool | None = None  # False: the storage has no way to
        self._stateful: bool | None = None

    @property
    def location(self) -> str:
        return self.storage.location

    def query_id(self) -> str | None:
        """The id Spark gave this checkpoint, None before its first start. It never changes once given."""
        if self._query_id is None:
            self._query_id = self.noted_id()
        return self._query_id

    def noted_id(self) -> str | None:
        """What Spark's own note says of it now: another driver may have written over that, see `log_repair`."""
        if (data := self.storage.read(QUERY_ID)) is None or _is_cut(data):
            return None
        try:
            return str(json.loads(data)["id"])
        except (KeyError, TypeError) as error:
            raise self._unreadable(QUERY_ID) from error

    def belongs_to(self, query: str) -> None:
        """From now on this is the checkpoint's id, whatever Spark's note says."""
        self._query_id = query

    def give_id(self) -> str:
        """The id, given now where there is none: a query that does not run in Spark's own log has none of Spark's."""
        if (known := self.query_id()) is None:
            with contextlib.suppress(AlreadyExists):
                self.storage.create(QUERY_ID, compact({"id": str(uuid.uuid4())}).encode())
            known = self.query_id()
            assert known is not None
        return known

    def newest_complete(self) -> Barrier | None:
        """The barrier of the newest complete epoch."""
        epoch = self.next_epoch()[0] - 1
        return self.barrier(epoch) if epoch >= 0 else None

    def next_epoch(self) -> tuple[int, bool]:
        """The epoch that comes next, and whether its barrier is written already."""
        barrier, committed = self._newest(OFFSETS), self._newest(COMMITS)
        return (barrier, True) if barrier > committed else (committed + 1, False)

    def torn(self) -> list[str]:
        """The newest files of the log that were begun and never finished, which Spark cannot read either."""
        names = []
        for folder in (OFFSETS, COMMITS):
            newest_whole = self._newest(folder)
            names += [f"{folder}/{number}" for number in self._numbers(folder) if number > newest_whole]
        newest = [max(notes)[1] for source in self.names(SOURCES) if (notes := self._notes(layout.source(source)))]
        names += [name for name in newest if _is_torn_note(self.storage.read(name))]
        return names + [QUERY_ID] * _is_cut(self.storage.read(QUERY_ID))

    def damaged(self) -> bool:
        """Whether Spark cannot go on from its log: files are torn, or missing in its middle."""
        before = self.next_epoch()[0] - 1
        return (before >= 0 and not self.has_barrier(before)) or bool(self.torn())

    def has_barrier(self, epoch: int) -> bool:
        return self._whole(OFFSETS, epoch) is not None

    def has_commit(self, epoch: int) -> bool:
        return self._whole(COMMITS, epoch) is not None

    def notes_reach(self, barrier: Barrier) -> bool:
        """Whether sources that note the files they read have whole notes up to `barrier`; Spark stops where one is
        missing. A stream that a plan holds twice has two positions and one folder."""
        folders = self.names(SOURCES)
        for index, offset in enumerate(barrier.offsets):
            noted = str(index) in folders or not folders
            if noted and reads_files(offset):
                notes = sorted(self._notes(layout.source(index)), reverse=True)
                newest = next((number for number, name in notes if not _is_torn_note(self.storage.read(name))), -1)
                if newest < offset["logOffset"]:
                    return False
        return True

    def _notes(self, folder: str) -> list[tuple[int, str]]:
        names = self.names(folder)
        return [(int(match[1]), f"{folder}/{name}") for name in names if (match := _NOTE.match(name))]

    def begin_anew(self, fence: Callable[[], None]) -> list[str]:
        """Remove what an attempt at the very first epoch has left: state, and where there is no barrier, anything in
        the log. Spark refuses to begin beside it. Only where no epoch is decided or complete. What was removed.
        `fence` raises where a newer run has registered: by now the state may be that run's."""
        folders = [STATE] if self.has_barrier(0) else [STATE, OFFSETS, COMMITS]
        fence()
        return [folder for folder in folders if self.storage.delete_folder(folder)]

    def names(self, folder: str) -> list[str]:
        """What lies beside the log in Spark's checkpoint: state, and the sources' own files."""
        return self.storage.list(folder)

    def barrier(self, epoch: int) -> Barrier | None:
        """The positions at which epoch `epoch` ends."""
        data = self.storage.read(layout.offsets(epoch))
        return None if data is None else self.parse_barrier(epoch, data)

    def newest_barrier(self) -> Barrier | None:
        """Of the newest epoch that Spark has planned, complete or not."""
        epoch, pending = self.next_epoch()
        return self.barrier(epoch if pending else epoch - 1)

    def parse_barrier(self, epoch: int, data: bytes) -> Barrier:
        try:
            _, metadata, offsets = split_offsets(data)
            parsed = tuple(None if line == "-" else json.loads(line) for line in offsets)
            return Barrier(hashlib.sha256(data).hexdigest(), json.loads(metadata), parsed, data.decode())
        except ValueError as error:
            raise self._unreadable(layout.offsets(epoch)) from error

    def notes(self, barrier: Barrier) -> dict[str, str]:
        """What sources that read files have noted for the barrier, by the names of their files: such a position is a
        number, and only the note of that number names the files."""
        texts = {}
        for index, offset in enumerate(barrier.offsets):
            for ending in ("", ".compact") if reads_files(offset) else ():
                name = f"{layout.source(index)}/{offset['logOffset']}{ending}"
                if (text := self.read(name)) is not None:
                    texts[name] = text
        return texts

    def read(self, name: str) -> str | None:
        """A file of the checkpoint, as it is; None where there is none."""
        data = self.storage.read(name)
        return None if data is None else data.decode(errors="replace")

    def commit(self, epoch: int) -> Commit | None:
        """None where there is no whole `commits/N`, or it is of a format we do not know."""
        return Commit.parse(self._whole(COMMITS, epoch) or b"")

    def state_ids(self, epoch: int) -> StateIds | None:
        """In the names of the state files that the epoch left; None in format 1."""
        return None if (commit := self.commit(epoch)) is None else commit.ids

    def committed_watermark(self, epoch: int) -> int | None:
        """The watermark in `commits/N`, None where there is no such file or it is of a format we do not know."""
        return None if (commit := self.commit(epoch)) is None else commit.watermark

    def newest_format(self) -> str | None:
        """The format of the state that the newest complete epoch left; None where there is none, or it is not known."""
        return None if (commit := self.commit(self._newest(COMMITS))) is None else commit.format

    def closed_up_to(self, epoch: int) -> int | None:
        """The watermark that `commits/N` leads to, in any format that says it; None where it cannot be seen."""
        _, _, body = (self._whole(COMMITS, epoch) or b"").decode(errors="replace").partition("\n")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(body)["nextBatchWatermarkMs"])
        return None

    def drained(self, epoch: int) -> bool:
        """Whether the barrier of `epoch` is that of a drain of this very query."""
        barrier = self.barrier(epoch) if self.has_barrier(epoch) else None
        return barrier is not None and barrier.drains is not None and barrier.drains == self.query_id()

    def finish(self, epoch: int, watermark: int | None, ids: StateIds | None = None) -> bool:
        """Write `commits/N`, durably. False, and nothing written, where that would be a guess."""
        text = self.commit_text(epoch, watermark, ids) if self.has_barrier(epoch) else None
        if text is not None and self._whole(COMMITS, epoch) is None:
            self.write_again(layout.commits(epoch), text)
        return text is not None

    def commit_text(self, epoch: int, watermark: int | None, ids: StateIds | None) -> str | None:
        """What belongs into `commits/N`. None where that would be a guess: this Spark's format is neither known by its
        version nor by an example, the watermark is not known, or the ids of the state are not."""
        before, known = self._example(epoch)
        listed = (ids is not None or self.state_format != "1") if before is None else before.ids is not None
        if watermark is None or not known or (ids is not None) is not listed:
            return None
        return Commit(watermark, ids, None if before is None else before.sinks).text()

    def no_ids(self, epoch: int) -> StateIds | None:
        """What the commit of an epoch without state has for ids."""
        before, _ = self._example(epoch)
        return None if (self.state_format if before is None else before.format) == "1" else {}

    def _example(self, epoch: int) -> tuple[Commit | None, bool]:
        """The newest whole commit before that of `epoch`, and whether the format of that one is known."""
        numbers = sorted((number for number in self._numbers(COMMITS) if number < epoch), reverse=True)
        data = next((data for number in numbers if (data := self._whole(COMMITS, number)) is not None), None)
        commit = Commit.parse(data or b"")
        return commit, self._known if data is None else commit is not None

    def cut_at(self, epoch: int, offsets: Sequence[Any], conf: Mapping[str, str], lanes: LaneNote | None) -> str:
        """`offsets/N` of an epoch that ends at these positions, in Spark's format: with the settings of the epoch
        before, or `conf` in the first one. Writes nothing."""
        before = self.barrier(epoch - 1) if epoch else None
        kept: dict[str, str] = before.metadata.get("conf", {}) if before is not None else dict(conf)
        kept = {key: value for key, value in kept.items() if key not in (_DRAIN, _LANES)}
        if lanes is not None:
            kept[_LANES] = compact({"version": _LANES_VERSION, **asdict(lanes)})
        watermark = (self.closed_up_to(epoch - 1) or 0) if epoch else 0
        metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": round(time.time() * 1000), "conf": kept}
        lines = ["-" if offset is None else compact(offset) for offset in offsets]
        return join_offsets(_V1, compact(metadata), lines).decode()

    def end_of_time(self, epoch: int) -> None:
        """Write `offsets/N` with the positions of the epoch before and a watermark beyond every event, replacing one
        that is there: an epoch that reads nothing and closes every window. Only for an epoch that was not begun. Until
        it is decided it counts for nothing: see `log_repair`."""
        before = self.storage.read(layout.offsets(epoch - 1))
        if before is None:
            raise self._unreadable(layout.offsets(epoch - 1))
        version, metadata, offsets = split_offsets(before)
        body = json.loads(metadata)
        changed = {"batchWatermarkMs": END_OF_TIME, "conf": {**body.get("conf", {}), _DRAIN: self.query_id()}}
        self.remove(layout.offsets(epoch))
        self.storage.create(layout.offsets(epoch), join_offsets(version, compact({**body, **changed}), offsets))

    def write_again(self, name: str, text: str) -> None:
        """Put back a file of the log, durably, in place of one that is torn or says something else."""
        if self.storage.read(name) != (data := text.encode()):
            self.remove(name)
            with contextlib.suppress(AlreadyExists):
                self.storage.create(name, data)

    def remove_torn(self, name: str) -> None:
        """Remove a torn file, and what Spark keeps beside it: a checksum of another content would condemn ours."""
        self.storage.delete(checksum_file(name))
        data = self.storage.read(name) or b""
        if name == QUERY_ID or _is_torn(data) or (name.startswith(OFFSETS) and self._lacks_positions(name, data)):
            self.storage.delete(name)

    def remove(self, name: str) -> None:
        """Remove a file of the log, and what Spark keeps beside it."""
        self.storage.delete(checksum_file(name))
        self.storage.delete(name)

    def sync(self) -> None:
        """Make durable what Spark has written of this checkpoint, as far as its file system can: state and
        the sources' own logs belong to a decision as the barrier does."""
        if self._synced is None or (self._synced and self._grows()):
            self._synced = self.storage.sync()

    def stateful(self) -> bool:
        """Whether the query keeps state. To be asked after an epoch's tasks have ended."""
        if self._stateful is None:
            self._stateful = bool(self.storage.list(STATE))
        return self._stateful

    def _grows(self) -> bool:
        """Whether every epoch leaves more than barrier and commit: state, or the log of a source that reads files."""
        notes = (name for source in self.names(SOURCES) for name in self.names(layout.source(source)))
        return self.stateful() or any(name != "0" for name in notes)

    def _newest(self, folder: str) -> int:
        """The number of the newest whole file, -1 where there is none."""
        numbers = sorted(self._numbers(folder), reverse=True)
        return next((number for number in numbers if self._whole(folder, number) is not None), -1)

    def _whole(self, folder: str, number: int) -> bytes | None:
        data = self.storage.read(f"{folder}/{number}")
        if data is None or _is_torn(data) or (folder == OFFSETS and self._lacks_positions(f"{folder}/{number}", data)):
            return None
        return data

    def _lacks_positions(self, name: str, data: bytes) -> bool:
        """Whether a barrier was cut at the end of a line. All of a log have as many positions as the oldest, which is
        the last to be lost."""
        version, *lines = data.rstrip(b"\n").split(b"\n")
        if version != _V1.encode():
            return False
        if not self._counted and (numbers := self._numbers(OFFSETS)):
            oldest = layout.offsets(min(numbers))
            first = self.storage.read(oldest) or b""
            if oldest != name and not _is_torn(first):
                self._positions, self._counted = max(1, first.rstrip(b"\n").count(b"\n") - 1), True
        return len(lines) - 1 < self._positions

    def _numbers(self, folder: str) -> list[int]:
        return [int(name) for name in self.storage.list(folder) if name.isdigit()]

    def _unreadable(self, name: str) -> LedgerCorrupt:
        return LedgerCorrupt(
            f"Spark's checkpoint file {self.location}/{name} cannot be read.",
            to_do="restore the file from a copy of the checkpoint.",
        )


def split_offsets(data: bytes) -> tuple[str, str, list[str]]:
    """Version, metadata in JSON, and an offset a source. `ValueError` where it is no `offsets/N`."""
    version, metadata, *offsets = data.decode().rstrip("\n").split("\n")
    return version, metadata, offsets


def join_offsets(version: str, metadata: str, offsets: Sequence[str]) -> bytes:
    return "\n".join([version, metadata, *offsets]).encode()


def reads_files(offset: Any) -> bool:
    return isinstance(offset, dict) and offset.keys() == {"logOffset"}


def compact(body: Mapping[str, Any]) -> str:
    """JSON as Spark writes it."""
    return json.dumps(body, separators=(",", ":"))


def _is_torn(data: bytes) -> bool:
    """Whether the end of a file of the log is missing. In versions 2 and 3 that is seen in the first line alone, in
    others only an empty file is recognised."""
    version, _, body = data.partition(b"\n")
    if not _VERSION.match(version):
        return True
    lines = body.rstrip(b"\n").split(b"\n")
    known = {b"v1": len(lines), b"v2": 1, b"v3": 1}.get(version, 0)
    return any(line != b"-" and _is_cut(line) for line in lines[:known])


def _is_torn_note(data: bytes | None) -> bool:
    """The same of a source's note. It may be no JSON. Kafka's begins with a zero byte; one of files may name none."""
    text = b"-" if data is None else data.lstrip(b"\0")
    beginnings = (b"", b"v", b"v1") if data != text else (b"", b"v")
    return text.strip() in beginnings or (text.startswith((b"v1\n{", b"v1\n[")) and _is_torn(text))


def _is_cut(text: bytes | None) -> bool:
    """Whether this is not the whole of a JSON text."""
    try:
        json.loads(b"{}" if text is None else text)
    except ValueError:
        return True
    return False
