"""Hidden while written, renamed when decided: the writer and the committer of the file sink.

    <path>/part-<uid>-e<epoch>-w<partition>-<token>.parquet                          visible
    <path>/_penstock/<job>/<uid>/staged/g…-e…-a…-p…-t…-<token>.parquet                prepared
    <path>/_penstock/<job>/<uid>/receipts/e<epoch>-<token>                           what a commit set out to rename

Readers skip folders that begin with `_`, and a rename is one step, so no reader ever sees half a file.

How a commit is proven. A staged file leaves its place in two ways: a commit renames it, an abort removes it. Before
the first rename of an epoch the committer writes a receipt, durably, with the names of the files that are still
staged at that moment; an abort takes a name off its receipt before it removes the file. So afterwards:

| staged | final | in a receipt | means |
|---|---|---|---|
| there | gone | any | prepared: rename it now |
| there | there | any | another program put a file under this name: unknown, an operator must look |
| gone | there, of the size the manifest says | any | committed |
| gone | there, of another size | yes / no | committed and changed since / unknown |
| gone | gone | yes | committed, and a reader has already moved the file away |
| gone | gone | no | lost: no commit ever began while the file was there |

Before it reports a file as committed, by this run or another, the committer syncs the folders of both names.

The receipts of the last epochs are kept, because no earlier epoch is asked about again. The proof relies on one thing:
no other program touches the folder `_penstock`.

A final name carries a random token, so the file of a void decision is never confused with its replacement.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.checkpoint.decision import Committable, Outcome
from penstock.checkpoint.layout import PRIVATE
from penstock.contracts.sink import Committer, Leftover, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed
from penstock.failpoints import failpoint
from penstock.naming import safe_name, safe_part
from penstock.sinks.files.encode import Encoder
from penstock.storage.storage import is_full
from penstock.storage.tree import StagedFile, Tree, full_disk_named

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: Epochs whose receipts are kept. One would do in order; the others are for epochs that commit concurrently.
KEPT_RECEIPTS = 16

_ATTEMPT = re.compile(r"g(\d+)-e(\d+)-a\d+-p(\d+)-t\d+-[0-9a-f]+(?:\..+)?")
_RECEIPT = re.compile(r"^e(?P<epoch>\d+)-[0-9a-f]+(?:\.(?P<kind>begun|done))?$")


def label(name: str) -> str:
    """`name` as part of a file name: unambiguous, not hidden, not too long."""
    quoted = quote(name, safe="").replace(".", "%2E")
    return quoted if len(quoted) <= 80 else f"{quoted[:60]}-{sha256(name.encode()).hexdigest()[:16]}"


def private_folder(scope: SinkScope) -> str:
    return f"{PRIVATE}/{label(scope.job)}/{label(scope.uid)}"


def staged_of(committable: Committable) -> str:
    """The hidden name, from the ledger; never that of a file outside the sink's folder."""
    name = safe_name(committable.payload["staged"], "the output folder")
    return name if name.startswith(f"{PRIVATE}/") else safe_name(f"/{name}", PRIVATE)


def attempt_name(scope: WriterScope, token: str) -> str:
    run = f"g{scope.sink.generation:08d}-e{scope.epoch:010d}-a{scope.attempt}"
    return f"{run}-p{scope.partition:05d}-t{scope.task_attempt}-{token}"


def numbers_in(name: str) -> tuple[int, int, int] | None:
    """Generation, epoch and partition in the name of a writer's attempt, whatever its ending; None for others."""
    match = _ATTEMPT.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def names_of(scope: WriterScope, ending: str) -> tuple[str, str]:
    """The hidden and the final name of one writer's file."""
    token = secrets.token_hex(6)
    staged = f"{private_folder(scope.sink)}/staged/{attempt_name(scope, token)}{ending}"
    return staged, f"part-{label(scope.sink.uid)}-e{scope.epoch:010d}-w{scope.partition:05d}-{token}{ending}"


class Receipts:
    """Small files in one folder, each with names that an epoch's commit has begun with, or has done; `kind` says which
    of the two, where a sink keeps both. The functions write a file durably, read it, list the folder, and remove it."""

    def __init__(
        self,
        folder: str,
        write: Callable[[str, bytes], None],
        read: Callable[[str], bytes],
        list: Callable[[str], Sequence[str]],
        remove: Callable[[str], object],
    ) -> None:
        self.folder = folder
        self._write, self._read, self._list, self._remove = write, read, list, remove

    def write(self, epoch: int, names: Sequence[str], kind: str = "") -> None:
        if names:
            receipt = f"{self.folder}/e{epoch:010d}-{secrets.token_hex(6)}{kind and f'.{kind}'}"
            self._write(receipt, "".join(f"{name}\n" for name in names).encode())

    def names(self) -> Mapping[str, set[str]]:
        """All names, by kind."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        for receipt, _, kind in self._all():
            names[kind].update(self._names_on(receipt))
        return names

    def strike(self, names: Collection[str], kind: str = "") -> None:
        """Take names off: they will be removed, not committed. No other name is ever without its receipt."""
        for receipt, epoch, its_kind in self._all():
            listed = self._names_on(receipt) if its_kind == kind else []
            if not set(names).isdisjoint(listed):
                self.write(epoch, [name for name in listed if name not in names], kind)
                self._remove(receipt)

    def forget(self, before: int) -> None:
        """Remove those of epochs `before` this one."""
        for receipt, epoch, _ in self._all():
            if epoch < before:
                self._remove(receipt)

    def _names_on(self, receipt: str) -> Sequence[str]:
        # A receipt cut short by a crash lists names with which nothing was done yet; the cut name matches nothing.
        return self._read(receipt).decode(errors="replace").split("\n")[:-1]

    def _all(self) -> Sequence[tuple[str, int, str]]:
        matches = filter(None, map(_RECEIPT.match, self._list(self.folder)))
        return [(f"{self.folder}/{match[0]}", int(match["epoch"]), match["kind"] or "") for match in matches]


class FileWriter(Writer):
    def __init__(self, staged: str, final: str, file: StagedFile, encoder: Encoder) -> None:
        self._staged, self._final = staged, final
        self._file, self._encoder = file, encoder

    def write(self, batch: pa.RecordBatch) -> None:
        with full_disk_named(self._staged, "nothing of this epoch is visible"):
            self._encoder.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        with full_disk_named(self._staged, "nothing of this epoch is visible"):
            self._encoder.close()
            try:
                size = self._file.finish()
            except FileNotFoundError as error:
                raise PreCommitFailed(
                    f"The hidden file {self._staged} was removed while it was written: a newer run has taken over, or "
                    "another program cleaned the folder.",
                    to_do="nothing if the job was restarted; otherwise keep other programs out of _penstock.",
                ) from error
        return {"staged": self._staged, "final": self._final, "bytes": size}

    def abort(self) -> None:
        self._file.discard()


class FileCommitter(Committer):
    def __init__(self, storage: Tree, scope: SinkScope) -> None:
        self._storage, self._scope = storage, scope
        self._staged = f"{private_folder(scope)}/staged"
        self._receipts = Receipts(
            f"{private_folder(scope)}/receipts", storage.write_durably, storage.read, storage.file_names, storage.remove
        )
        with full_disk_named(self._staged, "nothing was started"):
            storage.create_folder(self._staged)
            storage.create_folder(self._receipts.folder)

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        for committable in committables:
            size = self._storage.size(staged_of(committable))
            if size != committable.payload["bytes"]:
                raise PreCommitFailed(
                    f"The hidden file of writer {committable.writer} of sink {committable.sink!r} is "
                    f"{'gone' if size is None else 'not as it was written'}: {committable.payload['staged']}.",
                    to_do="if tasks run on several machines, see that all reach the same folder.",
                )
            self._storage.secure(staged_of(committable))
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        gone: list[Committable] = []
        with full_disk_named(self._staged, "the epoch is decided and its files are kept until they can be renamed"):
            staged = [staged_of(c) for c in committables if self._storage.size(staged_of(c)) is not None]
            self._receipts.write(epoch, staged)
            for committable in committables:
                outcome = Outcome.UNKNOWN if deadline.passed() else self._rename(committable)
                if outcome is None:
                    gone.append(committable)
                    continue
                outcomes[committable.writer] = outcome
                if len(outcomes) == 1:
                    failpoint("commit.first")
            if gone:
                # Read only now: this finds every receipt written before a file was seen missing.
                began = self._receipts.names()[""]
                outcomes.update({c.writer: self._prove(c, began) for c in gone})
            if any(outcome.visible for outcome in outcomes.values()):
                # Whichever run renamed: one that died right after has synced nothing, and no later commit asks again.
                self._storage.sync("")
                self._storage.sync(self._staged)
            if staged:
                self._receipts.forget(epoch - KEPT_RECEIPTS)
        return outcomes

    def _rename(self, committable: Committable) -> Outcome | None:
        """None if the staged file is gone and the outcome has to be proven."""
        staged, final = staged_of(committable), safe_part(committable.payload["final"], "the output folder")
        try:
            self._storage.rename(staged, final)
        except FileNotFoundError:
            return None
        except OSError as error:
            if is_full(error):
                raise
            if self._storage.size(staged) is None:
                return None
            log.error("%s could not be renamed to %s, it stays prepared: %s", staged, final, error)
            return Outcome.UNKNOWN
        return Outcome.COMMITTED

    def _prove(self, committable: Committable, began: Collection[str]) -> Outcome:
        if staged_of(committable) in began:
            return Outcome.ALREADY_COMMITTED
        size = self._storage.size(committable.payload["final"])
        if size is None:
            return Outcome.LOST
        return Outcome.ALREADY_COMMITTED if size == committable.payload["bytes"] else Outcome.UNKNOWN

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._remove([staged_of(committable) for committable in committables])

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {staged_of(committable) for committable in keep}
        return self._remove([name for name in self._open() if name not in kept])

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        return [
            Leftover(name, *numbers, payload={"staged": name}, details={"bytes": self._storage.size(name)})
            for name, numbers in self._open().items()
        ]

    def _open(self) -> dict[str, tuple[int, int, int]]:
        """The staged files of this and older generations; generation, epoch and partition of each."""
        names = self._storage.file_names(self._staged)
        numbers = {f"{self._staged}/{name}": found for name in names if (found := numbers_in(name)) is not None}
        return {name: found for name, found in numbers.items() if found[0] <= self._scope.generation}

    def _remove(self, staged: Sequence[str]) -> int:
        files = [name for name in staged if self._storage.size(name) is not None]
        self._strike(files)
        removed = [name for name in files if self._storage.remove(name)]
        # Again: a file that this call removed was never renamed, whatever a receipt of the last instant claims.
        self._strike(removed)
        return len(removed)

    def _strike(self, staged: Sequence[str]) -> None:
        if staged:
            self._receipts.strike(staged)
            # Or a power cut could restore a receipt whose file stays gone: lost would look like committed.
            self._storage.sync(self._receipts.folder)
