"""The writer that logs rows and the committer that hands them over.

    <log>/<job>/<uid>/rows/g…-e…-a…-p…-t…-<token>.arrow       the rows of one writer
    <log>/<job>/<uid>/notes/e<epoch>-<token>.begun            names whose rows the target may have, from now on
    <log>/<job>/<uid>/notes/e<epoch>-<token>.done             names whose rows the target has taken

A note of `begun` is durable before the first of its rows leaves; a note of `done` before their log is removed. So a
name on neither, whose log is gone, was certainly never handed over.

| on a note of `done` | id in the target's marker | on a note of `begun` | log | means |
|---|---|---|---|---|
| yes | – | – | – | already committed |
| no | yes | yes | – | already committed, and the acknowledgement was lost |
| no | no | any | there | prepared: write it (again) |
| no | no | no | gone | lost: it was never handed over |
| no | no | yes | gone | unknown: it may have been handed over, which cannot be proven |

Without a marker the second row of this table does not exist: rows that were written but not acknowledged are written
again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.checkpoint.inflight import LogFile, LogWriter, read_log
from penstock.contracts.sink import Committer, Leftover, SinkScope, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import LedgerError, PenstockError, PreCommitFailed
from penstock.failpoints import failpoint
from penstock.naming import safe_part
from penstock.sinks.files.commit import Receipts, attempt_name, label, numbers_in
from penstock.sinks.write_ahead import WriteAheadSink
from penstock.storage.local import task_tree
from penstock.storage.tree import full_disk_named

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

_PAUSES = (0.05, 0.2, 1.0, 2.0)
_NOTHING = "nothing of this epoch is visible; it replays from the same positions."
#: Epochs whose notes are kept. One would do in order; the others are for epochs that commit concurrently.
KEPT_EPOCHS = 16


class RowLog:
    """One sink's folder, reached from the driver and from tasks."""

    def __init__(self, location: str, scope: SinkScope) -> None:
        self._location = location
        self._folder = f"{label(scope.job)}/{label(scope.uid)}"
        self._storage = tree = task_tree(location)
        self.notes = Receipts(f"{self._folder}/notes", tree.write_durably, tree.read, tree.file_names, tree.remove)

    def create(self) -> None:
        with full_disk_named(self._location, "nothing was started"):
            self._storage.create_folder(f"{self._folder}/rows")
            self._storage.create_folder(self.notes.folder)

    def open(self, name: str, schema: pa.Schema) -> LogWriter:
        return LogWriter(self._location, self._rows(name), schema)

    def read(self, name: str, size: int, crc: int) -> Iterator[pa.RecordBatch]:
        return read_log(self._location, LogFile(self._rows(name), size, crc))

    def size(self, name: str) -> int | None:
        return self._storage.size(self._rows(name))

    def secure(self, name: str) -> None:
        """In the driver: make a task's file survive a power cut."""
        self._storage.secure(self._rows(name))

    def remove(self, names: Iterable[str]) -> int:
        return sum(self._storage.remove(self._rows(name)) for name in names)

    def waiting(self) -> dict[str, int]:
        """The names of all logged rows, with their generation."""
        names = self._storage.file_names(f"{self._folder}/rows")
        return {name: numbers[0] for name in names if (numbers := numbers_in(name)) is not None}

    def _rows(self, name: str) -> str:
        return f"{self._folder}/rows/{safe_part(name, self._location)}"


class LoggingWriter(Writer):
    """In a task: rows into a file of their own."""

    def __init__(self, location: str, scope: WriterScope) -> None:
        token = secrets.token_hex(6)
        self._location = location
        self._row_log = RowLog(location, scope.sink)
        self._name = f"{attempt_name(scope, token)}.arrow"
        self._id = f"{scope.sink.prefix}:{scope.partition}:{scope.epoch}:{token}"
        self._log: LogWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        with full_disk_named(self._location, _NOTHING):
            if self._log is None:
                self._log = self._row_log.open(self._name, batch.schema)
            self._log.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        if self._log is None:
            return {}
        try:
            with full_disk_named(self._location, _NOTHING):
                file = self._log.close()
        except FileNotFoundError as error:
            raise PreCommitFailed(
                f"The log {self._name} was removed while it was written: a newer run has taken over, or another "
                "program cleaned the folder.",
                to_do=f"nothing if the job was restarted; otherwise keep other programs out of {self._location}.",
            ) from error
        return {"id": self._id, "rows": self._name, "bytes": file.bytes, "crc": file.crc}

    def abort(self) -> None:
        if self._log is not None:
            self._log.discard()


class HandingCommitter(Committer):
    """In the driver: hands logged rows to the user's function, one writer after the other."""

    def __init__(self, sink: WriteAheadSink, scope: SinkScope) -> None:
        self._sink, self._scope = sink, scope
        self._row_log = RowLog(sink.log, scope)
        self._row_log.create()

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        for committable in committables:
            if committable.payload and self._row_log.size(committable.payload["rows"]) != committable.payload["bytes"]:
                raise PreCommitFailed(
                    f"The log of writer {committable.writer} of sink {committable.sink!r} is gone or not as it was "
                    f"written: {committable.payload['rows']}.",
                    to_do=f"if tasks run on several machines, see that all reach {self._sink.log}.",
                )
            if committable.payload:
                self._row_log.secure(committable.payload["rows"])
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        with full_disk_named(self._sink.log, "the epoch is decided, its rows wait in the log"):
            notes = self._row_log.notes.names()
            outcomes, ready = self._proven(committables, notes["begun"], notes["done"])
            if deadline.passed():
                return {**{committable.writer: Outcome.UNKNOWN for committable in ready}, **outcomes}
            fresh = [c.payload["rows"] for c in ready if c.payload["rows"] not in notes["begun"]]
            self._row_log.notes.write(epoch, fresh, "begun")
            self._hand_over(epoch, ready, outcomes, deadline)
            self._row_log.notes.forget(epoch - KEPT_EPOCHS)
        return outcomes

    def _proven(
        self, committables: Sequence[Committable], begun: Collection[str], done: Collection[str]
    ) -> tuple[dict[int, Outcome], list[Committable]]:
        """The outcomes that are proven without another write, and the committables still to be written."""
        outcomes: dict[int, Outcome] = {}
        ready = []
        undone = [c for c in committables if c.payload and c.payload["rows"] not in done]
        taken = self._taken([committable for committable in undone if committable.payload["rows"] in begun])
        for committable in committables:
            name = committable.payload.get("rows")
            if name is None:
                outcomes[committable.writer] = Outcome.COMMITTED  # it had no rows
            elif name in done or committable.payload["id"] in taken:
                outcomes[committable.writer] = Outcome.ALREADY_COMMITTED
                self._row_log.remove([name])
            elif self._row_log.size(name) is not None:
                ready.append(committable)
            else:
                outcomes[committable.writer] = Outcome.UNKNOWN if name in begun else Outcome.LOST
        return outcomes, ready

    def _taken(self, doubtful: Sequence[Committable]) -> set[str]:
        """The ids that the target has, of those that may have been handed over."""
        if not doubtful or self._sink.marker is None:
            return set()
        ids = {str(committable.payload["id"]) for committable in doubtful}
        return ids & self._sink.ids_in_target()

    def _hand_over(
        self, epoch: int, ready: Sequence[Committable], outcomes: dict[int, Outcome], deadline: Deadline
    ) -> None:
        unnoted: list[str] = []
        for committable in ready:
            outcome = outcomes[committable.writer] = self._write(committable, deadline)
            if outcome.visible:
                unnoted.append(committable.payload["rows"])
                # If a second write would show, the note must follow the first at once. Otherwise one note is enough.
                if not self._sink.exact:
                    self._finish(epoch, unnoted)
                    unnoted = []
            if len(outcomes) == 1:
                failpoint("commit.first")
        self._finish(epoch, unnoted)

    def _finish(self, epoch: int, names: Sequence[str]) -> None:
        self._row_log.notes.write(epoch, names, "done")
        self._row_log.remove(names)

    def _write(self, committable: Committable, deadline: Deadline) -> Outcome:
        payload, tries = committable.payload, 0
        while not deadline.passed():
            try:
                rows = self._row_log.read(payload["rows"], payload["bytes"], payload["crc"])
                self._sink.write(rows, payload["id"])
                return Outcome.COMMITTED
            except LedgerError as error:
                log.error("the log of writer %d cannot be handed over: %s", committable.writer, error)
                return Outcome.UNKNOWN
            except Exception as error:  # whatever the user's function raises
                if isinstance(error, PenstockError) and not error.retryable:
                    raise
                log.warning("%s failed, the rows stay in the log: %s", self._sink.describe(), error)
                if self._taken_after_all(committable):
                    return Outcome.COMMITTED
            time.sleep(min(deadline.remaining(), _PAUSES[min(tries, len(_PAUSES) - 1)]))
            tries += 1
        return Outcome.UNKNOWN

    def _taken_after_all(self, committable: Committable) -> bool:
        try:
            return bool(self._taken([committable]))
        except PenstockError as error:  # the whole target is unavailable: ask again later
            log.warning("%s", error)
            return False

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        self._remove([committable.payload["rows"] for committable in committables if committable.payload])

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {committable.payload["rows"] for committable in keep if committable.payload}
        return self._remove([leftover.name for leftover in self.leftovers(deadline) if leftover.name not in kept])

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        waiting = sorted(self._row_log.waiting().items())
        return [Leftover(name, run, payload={"rows": name}) for name, run in waiting if run <= self._scope.generation]

    def _remove(self, names: Sequence[str]) -> int:
        """Rows whose handover has begun are decided, and stay."""
        if not names:
            return 0
        begun = self._row_log.notes.names()["begun"]
        return self._row_log.remove([name for name in names if name not in begun])
