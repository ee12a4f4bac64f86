"""Flink's statistics of checkpoints, from the epochs of a run. One epoch of one query is one checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from penstock.checkpoint.record import CheckpointRecord
from penstock.ops.server.run_view import RunView, epoch_of
from penstock.ops.server.runs import Run

MOST_HISTORY = 100
SUMMARY_SECONDS = 5.0
"""How old a summary of many epochs may be."""
_FEW = 1000
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_MEASURES = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
)

_summaries: WeakKeyDictionary[RunView, tuple[float, dict[str, Any]]] = WeakKeyDictionary()


def statistics(run: Run, *, shown: bool) -> dict[str, Any]:
    """`/jobs/ID/checkpoints`. `shown`: errors may be told."""
    epochs = run.view.all_epochs()
    complete = next((epoch for epoch in reversed(epochs) if epoch["outcome"] == "complete"), None)
    failed = next((epoch for epoch in reversed(epochs) if epoch["outcome"] != "complete"), None)
    queries = run.view.queries().values()
    under_way = sum(now.phase != "idle" for now in queries) if run.live else 0
    totals = sum(now.complete for now in queries), sum(now.failed for now in queries)
    restored = run.view.notes("restored")
    savepoints = run.view.notes("savepoints")
    return {
        "counts": {
            "restored": len(restored),
            "total": sum(totals) + under_way,
            "in_progress": under_way,
            "completed": totals[0],
            "failed": totals[1],
        },
        "summary": _summary(run.view, epochs),
        "latest": {
            "completed": _line(complete, shown) if complete else None,
            "savepoint": _savepoint(savepoints[0]) if savepoints else None,
            "failed": _line(failed, shown) if failed else None,
            "restored": _restored(restored[0]) if restored else None,
        },
        "history": [_line(epoch, shown) for epoch in epochs[: -MOST_HISTORY - 1 : -1]],
    }


def _summary(view: RunView, epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the complete ones. Many are not reckoned through again and again because somebody looks."""
    last = _summaries.get(view)
    if last is not None and len(epochs) > _FEW and time.monotonic() - last[0] < SUMMARY_SECONDS:
        return last[1]
    complete = [_sizes(epoch) for epoch in epochs if epoch["outcome"] == "complete"]
    found = {name: spread([sizes[name] for sizes in complete]) for name in _MEASURES}
    _summaries[view] = (time.monotonic(), found)
    return found


def configuration(run: Run) -> dict[str, Any]:
    """`/jobs/ID/checkpoints/config`, as the run was started with."""
    told: Mapping[str, Any] = run.describe().get("checkpoints") or {}
    return {
        "mode": told.get("mode", "exactly_once"),
        "interval": told.get("interval"),
        "timeout": told.get("timeout"),
        "min_pause": told.get("min_pause"),
        "max_concurrent": told.get("max_concurrent"),
        "externalization": {
            "enabled": True,
            "delete_on_cancellation": bool(told.get("delete_on_cancellation", False)),
        },
        "state_backend": told.get("state_backend"),
        "checkpoint_storage": told.get("storage"),
        "unaligned_checkpoints": bool(told.get("unaligned", False)),
        "tolerable_failed_checkpoints": told.get("tolerable_failed"),
        "aligned_checkpoint_timeout": told.get("aligned_timeout"),
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
    }


def details(run: Run, number: int, *, shown: bool) -> dict[str, Any] | None:
    """`/jobs/ID/checkpoints/details/N`: the newest attempt at epoch N, each query that has one as a task."""
    by_query: dict[str, dict[str, Any]] = {}
    for epoch in run.view.all_epochs():
        if epoch["epoch"] == number:
            by_query[epoch["query"]] = _line(epoch, shown)
    if not by_query:
        return None
    newest = max(by_query.values(), key=lambda line: line["latest_ack_timestamp"])
    return {**newest, "tasks": {uid: {**line, "tasks": {}} for uid, line in by_query.items()}}


def subtasks(run: Run, number: int, vertex: str) -> dict[str, Any] | None:
    """`…/details/N/subtasks/QUERY`: how each source partition of the epoch came to the cut, while its record is
    kept."""
    record = run.record(vertex, number)
    if record is None:
        return None
    tasks = _subtasks(record)
    line = _line({**_epoch(record), "why": None}, False)
    durations = [task["end_to_end_duration"] for task in tasks]
    return {
        **{name: line[name] for name in ("id", "status", "latest_ack_timestamp", "num_subtasks", *_MEASURES)},
        "num_acknowledged_subtasks": len(tasks),
        "summary": {
            "checkpointed_size": spread([task["checkpointed_size"] for task in tasks]),
            "state_size": spread([task["state_size"] for task in tasks]),
            "end_to_end_duration": spread(durations),
            "checkpoint_duration": {"sync": spread(durations), "async": spread([0] * len(tasks))},
            "alignment": {
                "buffered": spread([0] * len(tasks)),
                "processed": spread([0] * len(tasks)),
                "persisted": spread([0] * len(tasks)),
                "duration": spread([task["alignment"]["duration"] for task in tasks]),
            },
            "start_delay": spread([task["start_delay"] for task in tasks]),
        },
        "subtasks": tasks,
    }


def spread(values: Iterable[float | None]) -> dict[str, float]:
    """The least, the most, the mean and Flink's percentiles; zero where there is nothing."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return dict.fromkeys(("min", "max", "avg", *_PERCENTILES), 0)
    mean = {"min": known[0], "max": known[-1], "avg": round(sum(known) / len(known))}
    return mean | {name: _percentile(known, share) for name, share in _PERCENTILES.items()}


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Between two neighbours in proportion to their distance."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 3)


def _sizes(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """What is summed up."""
    size = epoch["bytes"] or 0
    return {
        "checkpointed_size": size + epoch["inflight_bytes"],
        "state_size": epoch["state_bytes"] or 0,
        "end_to_end_duration": round(epoch["total_ms"]),
        "alignment_buffered": 0,
        "processed_data": size,
        "persisted_data": epoch["inflight_bytes"],
    }


def _line(epoch: Mapping[str, Any], shown: bool) -> dict[str, Any]:
    complete = epoch["outcome"] == "complete"
    ended = epoch["ended"]
    line = {
        "className": "completed" if complete else "failed",
        "id": epoch["epoch"],
        "query": epoch["query"],
        "status": "COMPLETED" if complete else "FAILED",
        "is_savepoint": False,
        "savepointFormat": None,
        "trigger_timestamp": epoch["opened"],
        "latest_ack_timestamp": ended,
        **_sizes(epoch),
        "num_subtasks": max(1, sum(int(share.get("writers") or 0) for share in epoch["sinks"])),
        "num_acknowledged_subtasks": max(1, sum(int(share.get("writers") or 0) for share in epoch["sinks"])),
        "checkpoint_type": "UNALIGNED_CHECKPOINT" if epoch["mode"] == "unaligned" else "CHECKPOINT",
        "tasks": {},
        "external_path": None,
        "discarded": False,
    }
    if not complete:
        line |= {"failure_timestamp": ended, "failure_message": epoch["why"] if shown else None}
        line["num_acknowledged_subtasks"] = 0
    return line


def _savepoint(note: Mapping[str, Any]) -> dict[str, Any]:
    epochs = note.get("epochs") or {}
    return {
        "className": "completed",
        "id": max(epochs.values(), default=0) if isinstance(epochs, Mapping) else 0,
        "status": "COMPLETED",
        "is_savepoint": True,
        "savepointFormat": str(note.get("kind") or "native").upper(),
        "trigger_timestamp": note["time"],
        "latest_ack_timestamp": note["time"],
        "checkpointed_size": note.get("bytes") or 0,
        "state_size": note.get("bytes") or 0,
        "end_to_end_duration": 0,
        "checkpoint_type": "SAVEPOINT",
        "external_path": note.get("path"),
        "discarded": False,
    }


def _restored(note: Mapping[str, Any]) -> dict[str, Any]:
    epochs = note.get("epochs") or {}
    return {
        "id": max(epochs.values(), default=0) if isinstance(epochs, Mapping) else 0,
        "restore_timestamp": note["time"],
        "is_savepoint": True,
        "external_path": note.get("path"),
    }


def _epoch(record: CheckpointRecord) -> dict[str, Any]:
    return epoch_of({**record.summary(), **record.extent()})


def _subtasks(record: CheckpointRecord) -> list[dict[str, Any]]:
    cuts = record.alignment.partitions if record.alignment is not None else ()
    unaligned = record.mode == "unaligned"
    return [
        {
            "className": "completed",
            "index": index,
            "partition": cut.partition,
            "status": "completed",
            "ack_timestamp": round(record.opened * 1000 + cut.reached_ms),
            "end_to_end_duration": round(cut.reached_ms),
            "state_size": 0,
            "checkpointed_size": 0,
            "checkpoint": {"sync": round(cut.took_ms), "async": 0},
            "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": round(cut.waited_ms)},
            "start_delay": round(cut.started_ms),
            "unaligned_checkpoint": unaligned,
            "aborted": record.outcome != "complete",
        }
        for index, cut in enumerate(cuts)
    ]
