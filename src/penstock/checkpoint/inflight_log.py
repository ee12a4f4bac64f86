"""One log file: the rows of one writer of one epoch, as the sink would have got them.

Arrow IPC stream, buffers compressed with lz4, the rows' hashes as last column. The schema's metadata carries the
format's version. A CRC-32 over the file's bytes is not inside but with the decision that names the file, so that a
file that was cut off, altered or exchanged is told from the one that was decided.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import INFLIGHT_VERSION
from penstock.errors import LedgerCorrupt, LedgerFromTheFuture, PreCommitFailed, StorageNotShared
from penstock.storage.durable import ensure_folder
from penstock.storage.open import task_tree
from penstock.storage.storage import local_path, storage_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.storage.tree import Tree

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of every Arrow IPC stream that was closed
_KEY = b"penstock.inflight.version"


@dataclass(frozen=True, slots=True)
class LogFile:
    """What a decision says of one file."""

    name: str
    bytes: int
    crc: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> LogFile:
        return cls(str(body["name"]), int(body["bytes"]), int(body["crc"]))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "crc": self.crc}


def make_folder(location: str) -> None:
    """In the driver, before tasks write there: a task that makes a folder may die before it has synced it."""
    path = local_path(location)
    if path is not None:
        with storage_errors(f"making {path}"):
            ensure_folder(path)


def confirm(location: str, files: Iterable[LogFile]) -> None:
    """In the driver, before a decision relies on them: each file is there, as long as its writer said, closed, and its
    name durable; its bytes its writer has synced. `StorageNotShared` where one is not there.

    Their checksums are proven when they are delivered: to read every byte again here would cost each epoch more than
    all the rest."""
    tree = task_tree(location)
    for file in files:
        size, end = tree.size(file.name), b""
        if size is None:
            raise StorageNotShared(
                f"A task has written {file.name} ({file.bytes:,} bytes) to the in-flight log, but the driver does not"
                f" see it in {location}.",
                safe="the epoch was not decided; nothing of it is visible, and it replays from the same positions.",
                to_do="put the checkpoints on storage that the driver and all executors share (HDFS, S3, or a folder"
                " that is mounted on each machine); a plain or file: path is a disk of each machine's own.",
            )
        if size == file.bytes:
            end = _last_bytes(tree, file.name, size)
        if end != _END:
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
    """A stream that sums what passes through it."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream, self.crc = stream, 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc = zlib.crc32(view, self.crc)
        self._stream.write(view)
        return view.nbytes

    def flush(self) -> None:
        self._stream.flush()

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
        self._schema = marked

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch.replace_schema_metadata(self._schema.metadata))

    def close(self) -> LogFile:
        """Durable when this returns."""
        self._writer.close()
        self._file.stream.close()
        size = self._file.finish()
        return LogFile(self._name, size, self._counted.crc)

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
        if version > INFLIGHT_VERSION:
            raise LedgerFromTheFuture(
                f"{where} has version {version}; this Penstock reads up to {INFLIGHT_VERSION}.",
                safe="nothing of it was delivered; the rows stay in the log.",
                to_do="run this job with the Penstock that wrote the log, or a newer one.",
            )
        yield from stream


def _corrupt(where: str, why: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"The in-flight log {where} cannot be trusted: {why}.",
        safe="nothing of it was delivered, and no later epoch of this sink either.",
        to_do="restore the file from a copy of the checkpoint storage, then start the job again.",
    )
