"""One log file: the rows of one writer of one epoch, as the sink would have got them.

Arrow IPC stream, buffers compressed with lz4, the rows' hashes as last column. The schema's metadata carries the
format's version. A CRC-32 over the file's bytes is not inside but with the decision that names the file, so that a
file that was cut off, altered or exchanged is told from the one that was decided.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import LedgerCorrupt, LedgerFromTheFuture

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sinks.files.storage import Storage

VERSION = 1
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


def log_storage(location: str) -> Storage:
    """The folder of log files, as tasks reach it: this machine's disk, or what pyarrow can open."""
    from penstock.epoch.storage import local_path
    from penstock.sinks.files.local import LocalStorage

    path = local_path(location)
    if path is not None:
        return LocalStorage(str(path))
    from pyarrow.fs import FileSystem

    from penstock.sinks.files.hdfs import ArrowStorage

    scheme, _, rest = location.partition("://")
    uri = f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
    return ArrowStorage(*FileSystem.from_uri(uri), address=location)


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
        self._file = log_storage(location).stage(name)
        self._counted = _Counted(self._file.stream)
        marked = schema.with_metadata({**(schema.metadata or {}), _KEY: str(VERSION).encode()})
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._counted, mode="w"), marked, options=options)
        self._schema = marked

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch.replace_schema_metadata(self._schema.metadata))

    def close(self) -> LogFile:
        """Durable when this returns."""
        self._writer.close()
        self._file.stream.close()
        size = self._file.settle()
        return LogFile(self._name, size, self._counted.crc)

    def discard(self) -> None:
        self._file.discard()


def read_log(location: str, file: LogFile) -> Iterator[pa.RecordBatch]:
    """The rows of a log file, hashes included. Raises `LedgerCorrupt` before the first row if it is not the file that
    was decided."""
    import pyarrow as pa

    where = f"{location}/{file.name}"
    try:
        data = log_storage(location).read(file.name)
    except FileNotFoundError:
        raise _corrupt(where, "it is gone") from None
    if len(data) != file.bytes or zlib.crc32(data) != file.crc:
        raise _corrupt(where, f"it has {len(data)} bytes and another checksum than the {file.bytes} that were decided")
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        version = int((stream.schema.metadata or {}).get(_KEY, b"0"))
        if version > VERSION:
            raise LedgerFromTheFuture(
                f"{where} has version {version}; this Penstock reads up to {VERSION}.",
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
