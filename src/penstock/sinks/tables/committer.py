"""The driver's side of both table sinks: one commit of the table for an epoch, proven by the table's own history.

The table's log is a line, and a data file's name carries a random token:

| token in the log since it was sealed | file | means |
|---|---|---|
| taken | any | committed, even if readers or clean-up have removed the file since |
| given up | any | lost: a newer run swept it, and noted that in the log before it removed the file |
| neither | there, of the size the manifest says | prepared: add it now, against the very state just looked at |
| neither | gone | lost: no commit can have named it |
| neither | of another size | unknown, an operator must look |
| the log no longer reaches back | in the table / not | committed / unknown |

Epoch numbers play no part in it, so the rows of a job that was restored to an older epoch, or starts over with a fresh
ledger, are never mistaken for a replay.

A newer run gives files of an older run up in the log before it removes them. Otherwise an old driver that stalled
between its look at the file and its commit could add a file that no longer exists.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, SinkScope
from penstock.deadline import Deadline, beside
from penstock.errors import PenstockError, PreCommitFailed, StorageFull
from penstock.failpoints import failpoint
from penstock.naming import safe_part
from penstock.sinks.tables import target as targets
from penstock.sinks.tables.target import Change, History, Known, Target, Written
from penstock.storage.tree import Tree

log = logging.getLogger(__name__)

_PAUSE = 0.02  # after a lost race or an error; doubled each time
_LONGEST_PAUSE = 1.0
_HINT_SECONDS = 5.0  # an epoch waits for it


class TableCommitter(Committer):
    def __init__(self, target: Target, scope: SinkScope) -> None:
        self._target, self._scope = target, scope
        self._lock = threading.RLock()  # a drainer and a coordinator may share a committer
        self._asked: Future[Known | None] | None = None

    def hints(self) -> Mapping[str, Any]:
        """The table's state now; without an answer each writer looks for itself."""
        if self._asked is None or self._asked.done():
            self._asked = beside("penstock-table-hints", self._look)
        asked = self._asked
        if not wait([asked], _HINT_SECONDS).done:
            log.warning("%s has not answered within %g s", self._target.where, _HINT_SECONDS)
            return {}  # the request stays open: a second one would wait behind it
        try:
            known = asked.result()
        except PenstockError as error:
            if not error.retryable:
                raise
            log.warning("%s", error)
            return {}
        return {} if known is None else {"table": known.to_json()}

    def _look(self) -> Known | None:
        with self._lock:
            return self._target.look()

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        if not committables:
            return committables
        with self._lock, self._target.translate_errors():
            known = self._target.look()
            problem: str | None = "the table is gone"
            if known is not None:
                storage, histories = self._target.storage(known), _Histories(self._target)
                problems = (
                    self._misfit(c, known) or self._altered(c, storage) or histories.given_up(c.payload)
                    for c in committables
                )
                problem = next(filter(None, problems), None)
                if problem is None:
                    self._secure(committables, storage)
        if problem:
            raise PreCommitFailed(
                f"The files prepared for {self._target.where} cannot be committed: {problem}.",
                to_do="if tasks run on several machines, see that all reach the same storage.",
            )
        assert known is not None
        # A proof begins here and not where the writer began: before the decision nothing can have added its files, and
        # the history has to reach back only over commits of epochs that were decided before this one.
        return [committable.with_payload(position=dict(known.position)) for committable in committables]

    def _secure(self, committables: Sequence[Committable], storage: Tree) -> None:
        for committable in committables:
            for file in committable.payload["files"]:
                storage.secure(file["name"])
                storage.secure(self._marker(committable.payload["generation"], file["name"]))

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        if not committables:
            return {}
        outcomes: Mapping[int, Outcome] = dict.fromkeys((c.writer for c in committables), Outcome.UNKNOWN)
        tried = taken = False
        pause, reported = _PAUSE, ""
        while True:
            try:
                with self._lock, self._target.translate_errors():
                    outcomes, prepared, known = self._prove(committables, fresh=tried)
                    if known is not None and not prepared:
                        self._forget(committables, outcomes, known)
                    if taken and prepared:
                        log.error("%s took epoch %d and does not show it", self._target.where, epoch)
                    if known is None or not prepared or taken or deadline.passed():
                        return outcomes
                    tried = True
                    taken = self._target.append(self._change(epoch, prepared, known))
            except StorageFull:
                raise
            except PenstockError as error:
                if str(error) != reported:
                    log.error("epoch %d of %s waits, prepared: %s", epoch, self._target.where, error)
                reported = str(error)
            if taken:
                failpoint("commit.first")
                continue  # the table's history is the proof
            if deadline.passed():
                return outcomes
            time.sleep(min(pause, deadline.remaining()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _prove(
        self, committables: Sequence[Committable], *, fresh: bool
    ) -> tuple[dict[int, Outcome], list[Committable], Known | None]:
        """Each outcome, and what can be added to the table now. `fresh`: this call may have added it itself."""
        known = self._target.look()
        if known is None:
            log.error("%s is gone, nothing can be proven about files prepared for it", self._target.where)
            return {c.writer: Outcome.UNKNOWN for c in committables}, [], None
        histories = _Histories(self._target)
        storage = self._target.storage(known)
        outcomes: dict[int, Outcome] = {}
        prepared = []
        for c in committables:
            history = histories.since(c.payload["position"])
            if c.payload["token"] in history.added:
                self._target.make_durable(c.payload["position"])  # the run that added it may have died too early
                outcomes[c.writer] = Outcome.COMMITTED if fresh else Outcome.ALREADY_COMMITTED
            elif c.payload["token"] in history.swept:
                outcomes[c.writer] = Outcome.LOST
            elif not history.complete:
                held = self._target.holds([file["name"] for file in c.payload["files"]])
                if held:
                    self._target.make_durable(c.payload["position"])
                outcomes[c.writer] = Outcome.ALREADY_COMMITTED if held else Outcome.UNKNOWN
                if not held:
                    log.error("the history of %s no longer tells whether %s was added", self._target.where, c.id)
            elif any(storage.size(file["name"]) is None for file in c.payload["files"]):
                outcomes[c.writer] = Outcome.LOST
            else:
                outcomes[c.writer] = Outcome.UNKNOWN
                problem = self._misfit(c, known) or self._altered(c, storage)
                if problem is None:
                    prepared.append(c)
                else:
                    log.error("%s cannot be added to %s and is kept: %s", c.id, self._target.where, problem)
        return outcomes, prepared, known

    def _misfit(self, committable: Committable, known: Known) -> str | None:
        if tuple(committable.payload["partition_by"]) != known.partition_by:
            return "the table is partitioned otherwise than when the rows were written"
        return targets.changed(committable.payload["columns"], known.schema)

    def _altered(self, committable: Committable, storage: Tree) -> str | None:
        for file in committable.payload["files"]:
            size = storage.size(safe_part(file["name"], self._target.where))
            if size != file["bytes"]:
                return f"the file {file['name']} is {'gone' if size is None else 'not as it was written'}"
        return None

    def _change(self, epoch: int, prepared: Sequence[Committable], known: Known) -> Change:
        return Change(
            f"{self._scope.prefix} generation {self._scope.generation} epoch {epoch}",
            files=[self._described(c, file, known) for c in prepared for file in c.payload["files"]],
            added=[committable.payload["token"] for committable in prepared],
        )

    def _described(self, committable: Committable, file: Mapping[str, Any], known: Known) -> Any:
        storage = self._target.storage(known)
        with contextlib.closing(storage.open(file["name"])) as stream:
            metadata = pq.read_metadata(stream)
        values = targets.marked_values(
            storage.read(self._marker(committable.payload["generation"], file["name"])), known
        )
        return self._target.describe(known, Written(file["name"], file["bytes"], metadata, values))

    def _forget(self, committables: Sequence[Committable], outcomes: Mapping[int, Outcome], known: Known) -> None:
        """Remove the markers of committed files. A marker that stays only costs the next sweep a look."""
        storage = self._target.storage(known)
        for committable in committables:
            if outcomes[committable.writer].visible:
                for file in committable.payload["files"]:
                    with contextlib.suppress(OSError):
                        storage.remove(self._marker(committable.payload["generation"], file["name"]))

    def _marker(self, generation: int, name: str) -> str:
        return targets.marker_name(SinkScope(self._scope.job, self._scope.uid, generation), name)

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        if not committables:
            return
        with self._lock, self._target.translate_errors():
            known = self._target.look()
            if known is None:
                return
            histories = _Histories(self._target)
            for payload in (committable.payload for committable in committables):
                if histories.never_taken(payload["token"], payload["position"]):
                    for file in payload["files"]:
                        self._remove(file["name"], payload["generation"], known)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {committable.payload["token"] for committable in keep}
        with self._lock, self._target.translate_errors():
            known = self._target.look()
            if known is None:
                return 0
            storage = self._target.storage(known)
            dangling = []
            for name in storage.file_names(targets.private_folder(self._scope)):
                parsed = targets.parse_marker(name)
                if parsed and parsed[0] <= self._scope.generation and parsed[2] not in kept:
                    position = targets.marked_position(storage, f"{targets.private_folder(self._scope)}/{name}")
                    dangling.append(_Dangling(name, *parsed, position))
            return self._sweep(dangling, known, deadline) if dangling else 0

    def _sweep(self, dangling: Sequence[_Dangling], known: Known, deadline: Deadline) -> int:
        histories = _Histories(self._target)
        while True:
            undecided = [file for file in dangling if histories.never_taken(file.token, file.position)]
            unnoted = sorted(
                {file.token for file in undecided if file.generation < self._scope.generation}
                - {token for file in undecided for token in histories.since(file.position).swept}
            )
            if not unnoted:
                break
            note = f"{self._scope.prefix} generation {self._scope.generation} gives up files of older runs"
            appended = self._target.append(Change(note, swept=unnoted))
            if not appended and deadline.passed():
                return 0  # nothing was removed: the next sweep finds it again
            if self._target.look() is None:
                return 0
            histories = _Histories(self._target)
        storage = self._target.storage(known)
        for file in dangling:
            if file in undecided:
                self._remove(file.name, file.generation, known)
            else:  # committed, with only its marker left; or older than the history, then vacuum removes it
                storage.remove(f"{targets.private_folder(self._scope)}/{file.marker}")
        return len({file.token for file in undecided})

    def _remove(self, name: str, generation: int, known: Known) -> None:
        storage = self._target.storage(known)
        storage.remove(name)
        storage.remove(self._marker(generation, name))
        # Again: its writer may have completed the file just before it could see that the marker is gone.
        storage.remove(name)


class _Dangling(NamedTuple):
    marker: str
    generation: int
    name: str
    token: str
    position: Mapping[str, Any]


class _Histories:
    """The table's history since several positions, each read once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._read: dict[str, History] = {}

    def since(self, position: Mapping[str, Any]) -> History:
        key = json.dumps(position, sort_keys=True)
        if key not in self._read:
            self._read[key] = self._target.history(position)
        return self._read[key]

    def given_up(self, payload: Mapping[str, Any]) -> str | None:
        """Why a newer run may be about to remove the files; None if the log holds no such note."""
        history = self.since(payload["position"])
        if payload["token"] in history.swept:
            return "a newer run has given it up"
        return None if history.complete or history.quiet else "the table's history was cut off since it was written"

    def never_taken(self, token: str, position: Mapping[str, Any]) -> bool:
        history = self.since(position)
        return history.complete and token not in history.added
