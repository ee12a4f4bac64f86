"""Runs as the REST paths see them: the one of this process, or a past one, read from its history or records."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.record import CheckpointRecord, records
from penstock.engine.control import Insight
from penstock.engine.settlement import JobLedgers
from penstock.errors import PenstockError
from penstock.ops.process.registry import Entry, Registry, State, now_ms
from penstock.ops.server import history
from penstock.ops.server.run_view import RunView
from penstock.ops.transactions import DecisionState, Orphan, Report, ended, look
from penstock.storage.local import LocalStorage
from penstock.storage.storage import local_path

MOST_CACHED = 16  # past runs whose history stays in memory
_ABOUT = ("query", "sink", "id", "epoch", "generation", "partition", "rows")  # of a transaction


@dataclass(frozen=True)
class Run:
    """`status`: what the job reports of itself; `since`: when it entered each state; both empty for a past run."""

    entry: Entry
    view: RunView
    describe: Callable[[], Mapping[str, Any]] = dict
    live: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)
    since: Mapping[State, int] = field(default_factory=dict)
    insight: Insight | None = None
    damage: Sequence[str] = ()

    @property
    def folder(self) -> Path | None:
        """The job's folder, where it is on this machine."""
        described = self.describe().get("folder")
        return local_path(str(described)) if described else _folder_of(self.entry)

    def exceptions(self) -> list[dict[str, Any]]:
        """What has failed, the newest first: also what ended the run."""
        notes, error, names = self.view.notes("exceptions"), self.entry.error, ("error", "happened", "safe", "to_do")
        if not error or not self.entry.state.ended:
            return notes
        facts = {name: str(error.get(name) or "") for name in names}
        return [{"time": self.entry.end or self.entry.modified, "query": None, **facts}, *notes]

    def record(self, query: str, epoch: int) -> CheckpointRecord | None:
        """The newest record of an epoch, while the job's folder keeps it."""
        of_epoch = [record for record in self.records(query) if record.epoch == epoch]
        return max(of_epoch, key=lambda record: record.ended, default=None)

    def records(self, query: str) -> list[CheckpointRecord]:
        folder = self.folder
        # The name comes from a request: it must be one of the queries, not a way out of the folder.
        if folder is not None and query in queries_in(folder):
            with contextlib.suppress(PenstockError, OSError):
                return records(LocalStorage(folder / query))
        return []


class OneRun:
    def __init__(self, run: Callable[[], Run]) -> None:
        self._run = run

    def all(self) -> list[Run]:
        return [self._run()]

    def get(self, id: str) -> Run | None:
        run = self._run()
        return run if run.entry.id == id else None


class MachineRuns:
    """All runs of this machine's registry, and jobs in the folders of `storages` that the registry does not know."""

    def __init__(self, storages: Iterable[str]) -> None:
        self.registry, self._storages = Registry(), tuple(storages)
        self._reading = threading.Lock()
        self._past: dict[str, tuple[Any, Run]] = {}

    def all(self) -> list[Run]:
        """The newest first."""
        known = self.registry.entries()
        folders = {_folder_of(entry) for entry in known}
        unknown = [entry for entry in self._stored() if _folder_of(entry) not in folders]
        return [Run(entry, _EMPTY, live=is_live(entry)) for entry in (*known, *unknown)]

    def entry(self, id: str) -> Entry | None:
        return self.registry.get(id) or next((entry for entry in self._stored() if entry.id == id), None)

    def get(self, id: str) -> Run | None:
        entry = self.entry(id)
        if entry is None:
            return None
        with self._reading:  # a page asks for several things at once, and a long history is read once
            mark = (entry, history.fingerprint(entry.id))
            last = self._past.pop(entry.id, None)
            run = last[1] if last is not None and last[0] == mark else _past_run(entry)
            self._past[entry.id] = (mark, run)
            if len(self._past) > MOST_CACHED:
                del self._past[next(iter(self._past))]
            return run

    def _stored(self) -> list[Entry]:
        paths = [path for storage in self._storages if (path := local_path(storage)) is not None]
        return [_stored_entry(folder) for path in paths for folder in _job_folders(path)]


Runs = OneRun | MachineRuns
_EMPTY = RunView()


def _past_run(entry: Entry) -> Run:
    past, view = history.read_history(entry.id), RunView()
    bad = view.load(past.events)
    strange = [f"{bad} of its events cannot be understood, and are left out"] if bad else []
    run = Run(entry, view, lambda: past.description, damage=(*past.damage, *strange))
    if not past.epochs:
        view.load(_from_records(run))
    return run


def is_live(entry: Entry) -> bool:
    """Whether it can be steered now, as far as the registry knows."""
    return entry.address is not None and entry.token is not None and not entry.state.ended


def queries_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return layout.query_uids(file.name for file in (folder / layout.QUERIES).iterdir())
    return []


def _folder_of(entry: Entry) -> Path | None:
    path = local_path(entry.storage) if entry.storage else None
    return path / entry.name if path is not None else None


def _job_folders(storage: Path) -> list[Path]:
    if (storage / layout.QUERIES).is_dir():
        return [storage]
    with contextlib.suppress(OSError):
        return sorted(folder for folder in storage.iterdir() if (folder / layout.QUERIES).is_dir())
    return []


def _stored_entry(folder: Path) -> Entry:
    """Of a job of which only the folder is known. It may run on another machine."""
    made_up = hashlib.sha256(f"storage {folder}".encode()).hexdigest()[:32]
    changed = now_ms()
    with contextlib.suppress(OSError):
        changed = round(folder.stat().st_mtime * 1000)
    return Entry(made_up, folder.name, State.SUSPENDED, start=changed, modified=changed, storage=str(folder.parent))


def _from_records(run: Run) -> list[dict[str, Any]]:
    folder, entry = run.folder, run.entry
    if folder is None:
        return []
    begin, end = (entry.start, entry.end or now_ms()) if entry.state is not State.SUSPENDED else (0, now_ms())
    kept = (record for query in queries_in(folder) for record in run.records(query))
    in_time = [record for record in kept if begin <= record.ended * 1000 <= end + 1000]
    return [
        {"time": record.ended, "event": "checkpoint", **record.summary(), **record.extent()}
        for record in sorted(in_time, key=lambda record: record.ended)
    ]


# Transactions, as the page shows them; the rules are those of `penstock.ops.transactions`, and nothing here writes.


def transactions_at(folder: Path | None) -> dict[str, Any]:
    """Of a past run, by its ledger alone: only its program knows its sinks."""
    if folder is None:
        return unseen_transactions("the job's folder is not on this machine")
    try:
        ledgers = JobLedgers.at(str(folder))
        return report_facts(look(ledgers, {}), ended(ledgers))
    except PenstockError as error:
        return unseen_transactions(error.happened)


def unseen_transactions(why: str) -> dict[str, Any]:
    return {"transactions": [], "unseen": [{"query": None, "sink": None, "why": why}]}


def report_facts(report: Report, past: Iterable[Orphan]) -> dict[str, Any]:
    """`past`: those that have ended, by the ledger."""
    return {"transactions": [*map(_facts, report.orphans), *map(_facts, past)], "unseen": report.not_asked()}


def _facts(orphan: Orphan) -> dict[str, Any]:
    timeout, state = orphan.details.get("timeout_seconds"), orphan.state
    if orphan.decision is DecisionState.DECIDED:
        # Decided and open: prepared, and only a commit can follow. Decided and not open: only another attempt to
        # commit proves how it ended.
        state = {"open": "prepared", "not asked": "prepared", "not open": "in doubt"}.get(state, state)
    return {name: getattr(orphan, name) for name in _ABOUT} | {
        "state": state,
        "asked": orphan.state in ("open", "not open"),
        "decision": orphan.decision.value,
        "age_seconds": None if orphan.started is None else round(max(0.0, time.time() - orphan.started), 3),
        "timeout_seconds": timeout,
        "holds_back": orphan.state == "open" and timeout is not None,
    }
