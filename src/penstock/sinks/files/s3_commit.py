"""Completed when decided: the committer of files on S3.

A writer leaves an open multipart upload; the commit completes it, which makes the object visible in one step. An upload
is ended by a commit, by an abort of ours, or by somebody else: a rule of the bucket that aborts old uploads, as Kafka
ends transactions that took too long.

    <path>/_penstock/<job>/<uid>/receipts/e<epoch>-<token>.begun     uploads that were open when a commit began
    <path>/_penstock/<job>/<uid>/receipts/e<epoch>-<token>.done      uploads that it has completed

| upload | object of that name | begun | done | means |
|---|---|---|---|---|
| open | any | any | any | prepared: complete it now |
| ended | there, with our token | any | any | committed |
| ended | there, without it | any | any | unknown: somebody has put another object there |
| ended | gone | any | yes | committed, and a reader has already moved the object away |
| ended | gone | yes | no | unknown: completed and moved away, or aborted after a commit had begun |
| ended | gone | no | no | lost: no commit ever began while the upload was open |

An abort of ours takes the upload off `begun` before it ends it, so what we abort is lost and proven. Where S3 does not
answer, asks to slow down, or where keys have expired, the commit asks again until its deadline and then says unknown:
uploads stay open, and the next try completes them. Needs neither a rename nor conditional writes.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope
from penstock.errors import PenstockError, PreCommitFailed
from penstock.failpoints import failpoint
from penstock.naming import safe_part
from penstock.sinks.files.commit import KEPT_RECEIPTS, private_folder
from penstock.sinks.files.s3_write import parse_name, start_of_names, token_of
from penstock.storage.s3 import S3Folder

if TYPE_CHECKING:
    from penstock.deadline import Deadline

log = logging.getLogger(__name__)

_AT_ONCE = 8
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # between questions that got no answer; doubled each time
_RECEIPT = re.compile(r"/e(?P<epoch>\d+)-[0-9a-f]+\.(?P<kind>begun|done)$")
_BEGUN, _DONE = "begun", "done"

_T = TypeVar("_T")


class UploadCommitter(Committer):
    """Completes, proves, sweeps."""

    def __init__(self, bucket: S3Folder, scope: SinkScope) -> None:
        self._bucket = bucket
        self._scope = scope
        self._receipts = f"{private_folder(scope)}/receipts"
        self._trouble: dict[int, str] = {}  # by writer: why there was no answer

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        for committable, parts in zip(committables, self._all(self._parts, committables), strict=True):
            if parts is None or parts != committable.payload["etags"]:
                raise PreCommitFailed(
                    f"The upload of writer {committable.writer} of sink {committable.sink!r} is "
                    f"{'gone' if parts is None else 'not as it was written'}: {self._name(committable)}.",
                    safe="nothing of this epoch is visible; it replays from the same positions.",
                    to_do="see that driver and workers reach the same bucket, and that nobody aborts its uploads.",
                )
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes = dict.fromkeys((one.writer for one in committables), Outcome.UNKNOWN)
        self._trouble.clear()

        def begin() -> list[Committable]:
            parts = self._all(self._parts, committables)
            still = [one for one, found in zip(committables, parts, strict=True) if found is not None]
            if still:
                self._write_receipt(epoch, _BEGUN, [one.payload["upload"] for one in still])
            return still

        began = self._until(deadline, begin, committables)
        if began is None:
            return outcomes
        found = self._all(lambda one: self._until(deadline, lambda: self._complete(one), [one]), committables)
        outcomes |= {one.writer: outcome or Outcome.UNKNOWN for one, outcome in zip(committables, found, strict=True)}
        completed = [one.payload["upload"] for one in began if outcomes[one.writer] is Outcome.COMMITTED]
        if completed:
            # Where this fails the objects are there all the same; only a reader that is very quick makes a question.
            self._until(deadline, lambda: self._finish(epoch, completed), committables)
        return outcomes

    def evidence(self, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        return {one.writer: self._describe(one) for one in committables}

    def _describe(self, committable: Committable) -> str:
        name = self._name(committable)
        try:
            state = "ended" if self._parts(committable) is None else "open"
            mark = self._bucket.mark(name)
        except PenstockError as error:
            return f"S3 does not say: {error.happened}"
        seen = "not there" if mark is None else "ours" if mark == token_of(name, self._scope) else "not ours"
        trouble = self._trouble.get(committable.writer)
        return f"the upload is {state}, the object {name} is {seen}" + (f"; last refusal: {trouble}" if trouble else "")

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._end([(self._name(one), str(one.payload["upload"])) for one in committables])

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {str(one.payload["upload"]) for one in keep}
        found = [(one.name, str(one.payload["upload"])) for one in self._open()]
        return self._end([one for one in found if one[1] not in kept])

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        return self._open()

    def _open(self) -> list[Leftover]:
        found = []
        for upload in self._bucket.uploads(start_of_names(self._scope)):
            match = parse_name(upload.name, self._scope)
            if match is None or int(match["generation"]) > self._scope.generation:
                continue
            found.append(
                Leftover(
                    upload.name,
                    int(match["generation"]),
                    int(match["epoch"]),
                    int(match["partition"]),
                    upload.started,
                    {"name": upload.name, "upload": upload.id},
                )
            )
        return found

    def _complete(self, committable: Committable) -> Outcome:
        name, upload = self._name(committable), str(committable.payload["upload"])
        if self._bucket.complete(name, upload, committable.payload["etags"]):
            failpoint("commit.first")
            return Outcome.COMMITTED
        mark = self._bucket.mark(name)
        if mark is not None:
            return Outcome.ALREADY_COMMITTED if mark == token_of(name, self._scope) else Outcome.UNKNOWN
        # Read only now: a receipt written before the upload was seen ended is certainly there.
        kinds = {kind for kind, uploads in self._read_receipts() if upload in uploads}
        if _DONE in kinds:
            return Outcome.ALREADY_COMMITTED
        return Outcome.UNKNOWN if _BEGUN in kinds else Outcome.LOST

    def _until(self, deadline: Deadline, work: Callable[[], _T], concerned: Sequence[Committable]) -> _T | None:
        """What `work` returns, asked again while S3 refuses and there is time; None where there is no more."""
        pause = _PAUSE
        while not deadline.passed():
            try:
                return work()
            except PenstockError as error:
                self._trouble.update({one.writer: error.happened for one in concerned})
                log.warning("%s", error)
            time.sleep(min(pause, deadline.remaining()))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _end(self, uploads: Sequence[tuple[str, str]]) -> int:
        open_ones = [one for one in uploads if self._bucket.parts(*one) is not None]
        self._strike({upload for _, upload in open_ones})
        for name, upload in open_ones:
            self._bucket.abort(name, upload)
        return len(open_ones)

    def _parts(self, committable: Committable) -> list[str] | None:
        parts = self._bucket.parts(self._name(committable), str(committable.payload["upload"]))
        return None if parts is None else [part.etag for part in parts]

    def _name(self, committable: Committable) -> str:
        """A ledger tells it: never that of an object which is not ours."""
        name = safe_part(committable.payload["name"], self._bucket.location)
        return name if name.startswith(start_of_names(self._scope)) else safe_part("", self._bucket.location)

    def _all(self, work: Callable[[Committable], _T], committables: Sequence[Committable]) -> list[_T]:
        if len(committables) < 2:
            return [work(one) for one in committables]
        with ThreadPoolExecutor(min(_AT_ONCE, len(committables)), thread_name_prefix="penstock-s3") as pool:
            return list(pool.map(work, committables))

    # Receipts

    def _write_receipt(self, epoch: int, kind: str, uploads: Sequence[str]) -> None:
        name = f"{self._receipts}/e{epoch:010d}-{secrets.token_hex(6)}.{kind}"
        self._bucket.put(name, "".join(f"{upload}\n" for upload in uploads).encode())

    def _finish(self, epoch: int, completed: Sequence[str]) -> bool:
        self._write_receipt(epoch, _DONE, completed)
        for name, number, _ in self._all_receipts():
            if number < epoch - KEPT_RECEIPTS:
                self._bucket.remove(name)
        return True

    def _strike(self, uploads: Collection[str]) -> None:
        """Take uploads off what was begun: they will be aborted, not completed."""
        if not uploads:
            return
        for name, _, kind in self._all_receipts():
            listed = self._listed(name)
            left = [upload for upload in listed if upload not in uploads]
            if kind == _BEGUN and len(left) < len(listed):
                self._bucket.put(name, "".join(f"{upload}\n" for upload in left).encode())

    def _read_receipts(self) -> list[tuple[str, list[str]]]:
        return [(kind, self._listed(name)) for name, _, kind in self._all_receipts()]

    def _listed(self, receipt: str) -> list[str]:
        return (self._bucket.read(receipt) or b"").decode().split()

    def _all_receipts(self) -> list[tuple[str, int, str]]:
        matches = ((name, _RECEIPT.search(name)) for name in self._bucket.names(f"{self._receipts}/"))
        return [(name, int(match["epoch"]), match["kind"]) for name, match in matches if match]
