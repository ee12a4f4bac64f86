"""A file on S3 while it is written: the parts of a multipart upload, of which nobody sees anything.

    <path>/part-<job>.<uid>.g<generation>-e<epoch>-a<attempt>-w<partition>-t<task attempt>-<token>.parquet

The name says everything a sweep has to know, because a listing of open uploads shows names and nothing else. The token
is also in the object's metadata: by it a committer knows the object for its own.
"""

from __future__ import annotations

import contextlib
import io
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import SinkScope, Writer, WriterScope
from penstock.errors import DataError, PenstockError, PreCommitFailed
from penstock.sinks.files.commit import label
from penstock.storage.s3 import S3Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sinks.files.encode import Encoder

#: S3 wants 5 MiB of every part but the last, and takes 10,000 of them; Cloudflare's R2 wants all but the last to be
#: equal. So a file has 156 GiB at most, and a task keeps one part in memory.
PART_BYTES = 16 << 20
MOST_PARTS = 10_000

_NAME = re.compile(
    r"^g(?P<generation>\d{8,})-e(?P<epoch>\d{10,})-a\d+-w(?P<partition>\d{5,})-t\d+-(?P<token>[0-9a-f]{12})\."
)


def start_of_names(scope: SinkScope) -> str:
    """How the names of all files of a sink begin. A label has no dot, so no other sink's begin so."""
    return f"part-{label(scope.job)}.{label(scope.uid)}."


def parse_name(name: str, scope: SinkScope) -> re.Match[str] | None:
    """Generation, epoch, partition and token of a sink's file; None for any other name."""
    start = start_of_names(scope)
    return _NAME.match(name.removeprefix(start)) if name.startswith(start) else None


def token_of(name: str, scope: SinkScope) -> str | None:
    match = parse_name(name, scope)
    return match["token"] if match else None


class UploadStream(io.RawIOBase):
    """Cuts bytes into parts. Closing it sends nothing: a stream is also closed where its task has failed."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send
        self._buffer = bytearray()
        self._sent = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._buffer += view
        self.size += len(view)
        while len(self._buffer) >= PART_BYTES:
            part = bytes(self._buffer[:PART_BYTES])
            del self._buffer[:PART_BYTES]
            self._pass_on(part)
        return len(view)

    def finish(self) -> None:
        """Send what is left. An upload needs a part, so that of an empty file is empty."""
        if self._buffer or not self._sent:
            self._pass_on(bytes(self._buffer))
            self._buffer.clear()

    def _pass_on(self, part: bytes) -> None:
        if self._sent == MOST_PARTS:
            raise DataError(
                f"A task of one epoch writes more than {(MOST_PARTS * PART_BYTES) >> 30} GiB into one file, and S3 "
                f"takes {MOST_PARTS} parts of an upload.",
                safe="nothing of this epoch is visible.",
                to_do="repartition the rows into more tasks, or cut epochs more often.",
            )
        self._send(part)
        self._sent += 1


class UploadWriter(Writer):
    """Writes one upload."""

    def __init__(self, bucket: S3Folder, scope: WriterScope, ending: str, encode: Callable[[Any], Encoder]) -> None:
        token = secrets.token_hex(6)
        self._bucket = bucket
        self._name = (
            f"{start_of_names(scope.sink)}g{scope.sink.generation:08d}-e{scope.epoch:010d}-a{scope.attempt}"
            f"-w{scope.partition:05d}-t{scope.task_attempt}-{token}{ending}"
        )
        self._etags: list[str] = []
        self._stream = UploadStream(self._send)
        self._encoder = encode(self._stream)
        self._upload = bucket.begin(self._name, token)

    def write(self, batch: pa.RecordBatch) -> None:
        self._encoder.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        self._encoder.close()
        self._stream.finish()
        return {"name": self._name, "upload": self._upload, "etags": self._etags, "bytes": self._stream.size}

    def abort(self) -> None:
        with contextlib.suppress(PenstockError):  # the sweep of the next attempt finds it
            self._bucket.abort(self._name, self._upload)

    def _send(self, part: bytes) -> None:
        etag = self._bucket.put_part(self._name, self._upload, len(self._etags) + 1, part)
        if etag is None:
            raise PreCommitFailed(
                f"The upload of {self._name} was ended while it was written: a newer run has taken over, or somebody "
                "or a rule of the bucket aborted it.",
                safe="nothing of this epoch is visible; it replays from the same positions.",
                to_do="nothing if the job was restarted; otherwise let no rule abort uploads of less than a day.",
            )
        self._etags.append(etag)
