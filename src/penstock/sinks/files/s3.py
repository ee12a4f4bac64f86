"""Files on S3: a writer leaves an open multipart upload, and the commit completes it.

    <path>/part-<job>.<uid>.g<generation>-e<epoch>-a<attempt>-w<partition>-t<task attempt>-<token>.parquet

The name holds everything that a sweep needs, because a listing of open uploads shows names only. The token is also in
the object's metadata: a committer recognises its own objects by it.

Completing an upload makes the object visible in one step. An upload ends by a commit, by an abort of ours, or by a rule
of the bucket that aborts old uploads, as Kafka ends transactions that took too long.

    <path>/_penstock/<job>/<uid>/receipts/e<epoch>-<token>.begun     uploads that were open when a commit began
    <path>/_penstock/<job>/<uid>/receipts/e<epoch>-<token>.done      uploads that it has completed

| upload | object of that name | begun | done | means |
|---|---|---|---|---|
| open | any | any | any | prepared: complete it now |
| ended | there, with our token | any | any | committed |
| ended | there, without it | any | any | unknown: another program has put an object there |
| ended | gone | any | yes | committed, and a reader has already moved the object away |
| ended | gone | yes | no | unknown: completed and moved away, or aborted after a commit had begun |
| ended | gone | no | no | lost: no commit ever began while the upload was open |

An abort of ours takes the upload off `begun` before it ends it, so its loss is proven. If S3 does not answer, asks to
slow down, or keys have expired, the commit retries until its deadline and then reports unknown: uploads stay open, and
the next attempt completes them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import DataError, PenstockError, PreCommitFailed
from penstock.failpoints import failpoint
from penstock.naming import safe_part
from penstock.sinks.files.commit import KEPT_RECEIPTS, Receipts, label, private_folder
from penstock.sinks.files.encode import Encoder
from penstock.storage.s3 import S3Folder

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_AT_ONCE = 8
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # between retries; doubled each time
#: S3 wants at least 5 MiB in every part but the last, and takes 10,000 parts; Cloudflare's R2 wants all but the last to
#: be equal. So a file has 156 GiB at most, and a task keeps one part in memory.
PART_BYTES = 16 << 20
MOST_PARTS = 10_000

_NAME = re.compile(
    r"^g(?P<generation>\d{8,})-e(?P<epoch>\d{10,})-a\d+-w(?P<partition>\d{5,})-t\d+-(?P<token>[0-9a-f]{12})\."
)
_BEGUN, _DONE = "begun", "done"


def start_of_names(scope: SinkScope) -> str:
    """The beginning of the names of all files of a sink. A label has no dot, so no other sink shares it."""
    return f"part-{label(scope.job)}.{label(scope.uid)}."


def parse_name(name: str, scope: SinkScope) -> re.Match[str] | None:
    """Generation, epoch, partition and token of a sink's file; None for any other name."""
    start = start_of_names(scope)
    return _NAME.match(name.removeprefix(start)) if name.startswith(start) else None


def token_of(name: str, scope: SinkScope) -> str | None:
    match = parse_name(name, scope)
    return match["token"] if match else None


class UploadStream(io.RawIOBase):
    """Cuts bytes into parts. Closing it sends nothing: the stream of a failed task is closed too."""

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
        """Send the remainder. An upload needs a part, so an empty file has an empty one."""
        if self._buffer or not self._sent:
            self._pass_on(bytes(self._buffer))
            self._buffer.clear()

    def _pass_on(self, part: bytes) -> None:
        if self._sent == MOST_PARTS:
            raise DataError(
                f"A task of one epoch writes more than {(MOST_PARTS * PART_BYTES) >> 30} GiB into one file, and S3 "
                f"takes {MOST_PARTS} parts of an upload.",
                to_do="repartition the rows into more tasks, or cut epochs more often.",
            )
        self._send(part)
        self._sent += 1


class UploadWriter(Writer):
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
        with contextlib.suppress(PenstockError):  # the next attempt's sweep finds it
            self._bucket.abort(self._name, self._upload)

    def _send(self, part: bytes) -> None:
        etag = self._bucket.put_part(self._name, self._upload, len(self._etags) + 1, part)
        if etag is None:
            raise PreCommitFailed(
                f"The upload of {self._name} ended while it was written: a newer run has taken over, or a rule of the "
                "bucket or another program aborted it.",
                to_do="nothing if the job was restarted; otherwise let no rule abort uploads of less than a day.",
            )
        self._etags.append(etag)


class UploadCommitter(Committer):
    def __init__(self, bucket: S3Folder, scope: SinkScope) -> None:
        self._bucket, self._scope = bucket, scope
        self._receipts = Receipts(
            f"{private_folder(scope)}/receipts",
            bucket.put,
            lambda name: bucket.read(name) or b"",
            lambda folder: [name.rpartition("/")[2] for name in bucket.names(f"{folder}/")],
            bucket.remove,
        )
        self._trouble: dict[int, str] = {}  # by writer: why there was no answer

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        for committable, parts in zip(committables, self._all(self._parts, committables), strict=True):
            if parts is None or parts != committable.payload["etags"]:
                raise PreCommitFailed(
                    f"The upload of writer {committable.writer} of sink {committable.sink!r} is "
                    f"{'gone' if parts is None else 'not as it was written'}: {self._name(committable)}.",
                    to_do="see that driver and workers reach the same bucket, and that nothing aborts its uploads.",
                )
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes = dict.fromkeys((c.writer for c in committables), Outcome.UNKNOWN)
        self._trouble.clear()

        def begin() -> list[Committable]:
            uploads = zip(committables, self._all(self._parts, committables), strict=True)
            prepared = [committable for committable, parts in uploads if parts is not None]
            self._receipts.write(epoch, [committable.payload["upload"] for committable in prepared], _BEGUN)
            return prepared

        prepared = self._until(deadline, begin, committables)
        if prepared is None:
            return outcomes
        results = self._all(lambda c: self._until(deadline, lambda: self._complete(c), [c]), committables)
        outcomes |= {c.writer: outcome or Outcome.UNKNOWN for c, outcome in zip(committables, results, strict=True)}
        completed = [c.payload["upload"] for c in prepared if outcomes[c.writer] is Outcome.COMMITTED]
        if completed:
            # If this fails, the objects exist all the same; only if a reader moves one at once does a doubt remain.
            self._until(deadline, lambda: self._finish(epoch, completed), committables)
        return outcomes

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        return {committable.writer: self._describe(committable) for committable in committables}

    def _describe(self, committable: Committable) -> str:
        name = self._name(committable)
        try:
            state = "ended" if self._parts(committable) is None else "open"
            mark = self._bucket.mark(name)
        except PenstockError as error:
            return f"S3 does not answer: {error.happened}"
        seen = "not there" if mark is None else "ours" if mark == token_of(name, self._scope) else "not ours"
        trouble = self._trouble.get(committable.writer)
        return f"the upload is {state}, the object {name} is {seen}" + (f"; last refusal: {trouble}" if trouble else "")

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._end([(self._name(c), str(c.payload["upload"])) for c in committables])

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {str(committable.payload["upload"]) for committable in keep}
        uploads = [(leftover.name, str(leftover.payload["upload"])) for leftover in self.leftovers(deadline)]
        return self._end([(name, upload) for name, upload in uploads if upload not in kept])

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        leftovers = []
        for upload in self._bucket.uploads(start_of_names(self._scope)):
            match = parse_name(upload.name, self._scope)
            if match is not None and int(match["generation"]) <= self._scope.generation:
                run, epoch, partition = (int(match[part]) for part in ("generation", "epoch", "partition"))
                payload = {"name": upload.name, "upload": upload.id}
                leftovers.append(Leftover(upload.name, run, epoch, partition, upload.started, payload))
        return leftovers

    def _complete(self, committable: Committable) -> Outcome:
        name, upload = self._name(committable), str(committable.payload["upload"])
        if self._bucket.complete(name, upload, committable.payload["etags"]):
            failpoint("commit.first")
            return Outcome.COMMITTED
        mark = self._bucket.mark(name)
        if mark is not None:
            return Outcome.ALREADY_COMMITTED if mark == token_of(name, self._scope) else Outcome.UNKNOWN
        # Read only now: this finds every receipt written before the upload was seen ended.
        names = self._receipts.names()
        if upload in names[_DONE]:
            return Outcome.ALREADY_COMMITTED
        return Outcome.UNKNOWN if upload in names[_BEGUN] else Outcome.LOST

    def _until(self, deadline: Deadline, work: Callable[[], _T], concerned: Sequence[Committable]) -> _T | None:
        """The result of `work`, retried while S3 refuses; None once the deadline has passed."""
        pause = _PAUSE
        while not deadline.passed():
            try:
                return work()
            except PenstockError as error:
                self._trouble.update({committable.writer: error.happened for committable in concerned})
                log.warning("%s", error)
            time.sleep(min(pause, deadline.remaining()))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _end(self, uploads: Sequence[tuple[str, str]]) -> int:
        open_uploads = [(name, upload) for name, upload in uploads if self._bucket.parts(name, upload) is not None]
        if open_uploads:
            self._receipts.strike({upload for _, upload in open_uploads}, _BEGUN)
        for name, upload in open_uploads:
            self._bucket.abort(name, upload)
        return len(open_uploads)

    def _parts(self, committable: Committable) -> list[str] | None:
        return self._bucket.parts(self._name(committable), str(committable.payload["upload"]))

    def _name(self, committable: Committable) -> str:
        """From the ledger; never the name of an object that is not this sink's."""
        name = safe_part(committable.payload["name"], self._bucket.location)
        return name if name.startswith(start_of_names(self._scope)) else safe_part("", self._bucket.location)

    def _all(self, work: Callable[[Committable], _T], committables: Sequence[Committable]) -> list[_T]:
        if len(committables) < 2:
            return [work(committable) for committable in committables]
        with ThreadPoolExecutor(min(_AT_ONCE, len(committables)), thread_name_prefix="penstock-s3") as pool:
            return list(pool.map(work, committables))

    def _finish(self, epoch: int, completed: Sequence[str]) -> bool:
        self._receipts.write(epoch, completed, _DONE)
        self._receipts.forget(epoch - KEPT_RECEIPTS)
        return True
