"""The in-flight log: files that hold the rows of one writer of one epoch as the sink would have got them; and the
backlog of one sink, the complete epochs whose rows are in such files and not yet, for sure, in the sink.

    logs/0000000012.g00000007.a3.p1.t55.arrow   rows of one writer
    backlog/0000000012.json                     epoch 12 is to be delivered: its committables
    drained/0000000011.json                     everything up to epoch 11 is delivered

A log file is an Arrow IPC stream, buffers compressed with lz4, the rows' hashes as last column; the schema's metadata
carries the format's version. A CRC-32 over its bytes is kept with the decision that names the file, so that a file that
was cut off, altered or exchanged differs from the one that was decided.

A record is created once. Epochs are delivered in order, and the mark comes before the record and its files are
removed; so a record at or below the newest mark, left or made again by a run that was interrupted, counts as delivered.
Everything lies under the id of Spark's query: in a checkpoint that was begun anew, epochs mean other rows.
"""

from __future__ import annotations

import contextlib
import re
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import Committable
from penstock.checkpoint.layout import BACKLOG, DRAINED, INFLIGHT_VERSION, numbered, numbers, refuse_newer, seal
from penstock.errors import LedgerCorrupt, PreCommitFailed, StorageNotShared
from penstock.storage.durable import ensure_folder
from penstock.storage.local import task_tree
from penstock.storage.storage import AlreadyExists, Storage, local_path, storage_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.storage.tree import Tree

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of every Arrow IPC stream that was closed
_KEY = b"penstock.inflight.version"
_LOG = re.compile(r"^(\d{10})\.g(\d{8})\.")


@dataclass(frozen=True, slots=True)
class LogFile:
    """What a decision says of one file."""

    name: str
    bytes: int
    crc: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_folder(location: str) -> None:
    """In the driver, before tasks write there: a task that makes a folder may die before it has synced it."""
    if (path := local_path(location)) is not None:
        with storage_errors(f"making {path}"):
            ensure_folder(path)


def confirm(location: str, files: Iterable[LogFile]) -> None:
    """In the driver, before a decision relies on them: each file is there, as long as its writer reported, closed, and
    its name durable; its bytes its writer has synced. `StorageNotShared` where one is not there.

    Their checksums are proven when they are delivered: to read every byte again here would cost each epoch more than
    all the rest."""
    tree = task_tree(location)
    for file in files:
        size = tree.size(file.name)
        if size is None:
            raise StorageNotShared(
                f"A task has written {file.name} ({file.bytes:,} bytes) to the in-flight log, but the driver does not"
                f" see it in {location}.",
                safe="the epoch was not decided; nothing of it is visible, and it replays from the same positions.",
                to_do="put the checkpoints on storage that the driver and all executors share (HDFS, S3, or a folder"
                " that is mounted on each machine); a plain or file: path is a disk of each machine's own.",
            )
        if size != file.bytes or _last_bytes(tree, file.name, size) != _END:
            raise PreCommitFailed(
                f"{location}/{file.name} of the in-flight log is not as its writer left it: it has {size:,} bytes where"
                f" {file.bytes:,} were written{'' if size != file.bytes else ', and no end'}.",
                safe="the epoch was not decided; nothing of it is visible, and it replays from the same positions.",
                to_do="if this repeats, see to the storage of the checkpoints.",
            )
        tree.secure(file.name)
    tree.sync("")


def _last_bytes(tree: Tree, name: str, size: int) -> bytes:
    with tree.open(name) as file:
        file.seek(max(0, size - len(_END)))
        return bytes(file.read())


class _Counted:
    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream, self.crc = stream, 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc = zlib.crc32(view, self.crc)
        self._stream.write(view)
        return view.nbytes

    def close(self) -> None:
        self.closed = True


class LogWriter:
    """Writes one file. Nothing counts before `close` has returned; after `discard` nothing is left."""

    def __init__(self, location: str, name: str, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._name = name
        self._file = task_tree(location).stage(name)
        self._counted = _Counted(self._file.stream)
        marked = schema.with_metadata({**(schema.metadata or {}), _KEY: str(INFLIGHT_VERSION).encode()})
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._counted, mode="w"), marked, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> LogFile:
        """Durable when this returns."""
        self._writer.close()
        self._file.stream.close()
        return LogFile(self._name, self._file.finish(), self._counted.crc)

    def discard(self) -> None:
        self._file.discard()


def read_log(location: str, file: LogFile) -> Iterator[pa.RecordBatch]:
    """The rows of a log file, hashes included. Raises `LedgerCorrupt` before the first row if it is not the file that
    was decided."""
    import pyarrow as pa

    where = f"{location}/{file.name}"
    try:
        data = task_tree(location).read(file.name)
    except FileNotFoundError:
        raise _corrupt(where, "it is gone") from None
    if len(data) != file.bytes or zlib.crc32(data) != file.crc:
        raise _corrupt(where, f"it has {len(data)} bytes and another checksum than the {file.bytes} that were decided")
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        version = int((stream.schema.metadata or {}).get(_KEY, b"0"))
        refuse_newer(where, version, INFLIGHT_VERSION)
        yield from stream


def _corrupt(where: str, why: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"The in-flight log {where} cannot be trusted: {why}.",
        safe="nothing of it was delivered, and no later epoch of this sink either.",
        to_do="restore the file from a copy of the checkpoint storage, then start the job again.",
    )


def log_of(committable: Committable) -> LogFile:
    return LogFile(**committable.payload["log"])


def with_prepared(committable: Committable, prepared: Committable | None) -> Committable:
    return committable.with_payload(prepared=None if prepared is None else dict(prepared.payload))


@dataclass(frozen=True, slots=True)
class Entry:
    """One epoch of one sink, to be delivered."""

    epoch: int
    committables: tuple[Committable, ...]

    @property
    def bytes(self) -> int:
        return sum(log_of(committable).bytes for committable in self.committables)

    @property
    def prepared(self) -> tuple[Committable, ...]:
        return tuple(prepared for committable in self.committables if (prepared := committable.at_sink) is not None)

    @property
    def at_sink(self) -> bool:
        """Whether every writer had prepared at the sink, so that a commit there may be all that is left to do."""
        return len(self.prepared) == len(self.committables)


class Backlog:
    """Written by the coordinator, emptied by the drainer of the same process; both may call from their threads."""

    def __init__(self, storage: Storage, folder: str, logs: str) -> None:
        self._storage, self._folder, self.logs = storage, folder, logs
        self._changed = threading.Condition()
        self._entries: dict[int, Entry] = {}
        self._drained = -1
        self.reload()

    @property
    def location(self) -> str:
        return f"{self._storage.location}/{self._folder}"

    @property
    def drained(self) -> int:
        """Everything up to this epoch is delivered."""
        return self._drained

    def entries(self) -> tuple[Entry, ...]:
        with self._changed:
            return tuple(self._entries[epoch] for epoch in sorted(self._entries))

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries())

    def first(self) -> Entry | None:
        return next(iter(self.entries()), None)

    @property
    def at_sink(self) -> bool:
        """Whether all that waits is prepared at the sink, and nothing there has to be written from the log."""
        return all(entry.at_sink for entry in self.entries())

    def wait(self, seconds: float) -> None:
        """Until something is added or delivered, or the time is up."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def record(self, epoch: int, committables: Sequence[Committable]) -> bool:
        """Make the epoch one to be delivered; False if it was recorded, or even delivered, before."""
        if epoch <= self._drained or epoch in self._entries:
            return False
        rows = [[item.sink, item.writer, item.rows, item.checksum, dict(item.payload)] for item in committables]
        body = {"epoch": epoch, "committables": rows}
        entry, fresh = Entry(epoch, tuple(committables)), True
        try:
            self._storage.create(numbered(f"{self._folder}/{BACKLOG}", epoch), seal("backlog", body))
        except AlreadyExists:
            entry, fresh = read_entry(self._storage, self._folder, epoch) or entry, False
        with self._changed:
            self._entries[epoch] = entry
            self._changed.notify_all()
        return fresh

    def mark(self, epoch: int) -> None:
        """Everything up to `epoch` is visible in the sink. After this it is never delivered again."""
        with contextlib.suppress(AlreadyExists):
            self._storage.create(numbered(f"{self._folder}/{DRAINED}", epoch), seal("drained", {"epoch": epoch}))
        self._drained = max(self._drained, epoch)

    def forget(self, entry: Entry) -> None:
        """Remove the record and the log of a marked epoch, and older marks."""
        self._storage.delete(numbered(f"{self._folder}/{BACKLOG}", entry.epoch))
        self.remove_logs([log_of(committable).name for committable in entry.committables])
        for number in numbers(self._storage.list(f"{self._folder}/{DRAINED}")):
            if number < self._drained:
                self._storage.delete(numbered(f"{self._folder}/{DRAINED}", number))
        with self._changed:
            self._entries.pop(entry.epoch, None)
            self._changed.notify_all()

    def remove_logs(self, names: Collection[str]) -> None:
        tree = task_tree(self.logs)
        for name in names:
            tree.remove(name)

    def has_log(self, committable: Committable) -> bool:
        return task_tree(self.logs).size(log_of(committable).name) is not None

    def remove_strays(self, generation: int, keep: Collection[Committable]) -> None:
        """Remove log files that no epoch needs, of attempts that failed in this and older runs."""
        tree = task_tree(self.logs)
        needed = {log_of(committable).name for committable in keep if committable.logged}
        needed.update(log_of(committable).name for entry in self.entries() for committable in entry.committables)
        for name in tree.file_names(""):
            match = _LOG.match(name)
            if match and int(match[2]) <= generation and name not in needed:
                tree.remove(name)

    def reload(self) -> None:
        """Read again what waits and what is delivered: a run before this one may have delivered some of it. What this
        process records meanwhile stays."""
        for folder in (DRAINED, BACKLOG):
            # A run that died may have given a name and not synced it; epochs are about to be completed by what is here.
            self._storage.settle(f"{self._folder}/{folder}")
        waiting = numbers(self._storage.list(f"{self._folder}/{BACKLOG}"))
        recorded = [entry for number in waiting if (entry := read_entry(self._storage, self._folder, number))]
        # After the records: a mark is made before the record that it covers is removed.
        drained = drained_up_to(self._storage, self._folder)
        with self._changed:
            self._drained = max(self._drained, drained)
            known = {**self._entries, **{entry.epoch: entry for entry in recorded}}
            self._entries = {epoch: entry for epoch, entry in known.items() if epoch > self._drained}
            self._changed.notify_all()
        for entry in recorded:
            if entry.epoch <= self._drained:
                self.forget(entry)


def drained_up_to(storage: Storage, folder: str) -> int:
    """Everything up to this epoch is delivered, says the newest mark in a sink's folder; -1 where there is none."""
    return max(numbers(storage.list(f"{folder}/{DRAINED}")), default=-1)


def read_entry(storage: Storage, folder: str, epoch: int) -> Entry | None:
    """What a sink's folder records of an epoch, None where it records nothing."""
    body = layout.read_sealed(storage, "backlog", numbered(f"{folder}/{BACKLOG}", epoch))
    return None if body is None else Entry(epoch, tuple(Committable(*fields) for fields in body["committables"]))
