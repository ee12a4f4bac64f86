"""What the fault suites ask `penstock.testing.anomalies` at their end: one reader for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.testing.anomalies import DUPLICATE, LOST, Anomaly, Row, find_anomalies


class Sent(Protocol):
    """One row of the input: the `number`-th of its key."""

    @property
    def id(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def number(self) -> int: ...


def copy_anomalies(
    sent: Iterable[Sent], visible: Iterable[Mapping[str, Any]], epochs: Mapping[int, int] | None = None
) -> list[Anomaly]:
    """Of a copy of the input. `visible` rows have `id`, `key` and `number`, in the order in which a reader gets them;
    `epochs` has the epoch of each id, where it is known. A row whose parts do not belong together was never sent."""
    whole = {(row.key, row.number): row.id for row in sent}
    known = epochs or {}
    return find_anomalies(
        [Row(key, number, known.get(name)) for (key, number), name in whole.items()],
        [
            Row(
                row["key"] if whole.get((row["key"], row["number"])) == row["id"] else (row["key"], row["id"]),
                row["number"],
            )
            for row in visible
        ],
    )


def total_anomalies(truth: Mapping[tuple[str, int], int], visible: Sequence[Mapping[str, Any]]) -> list[Anomaly]:
    """Of running totals: rows of `key`, `n` and `total`, where `truth` has the total after each n. Which of them a job
    writes depends on where its epochs end; only the last of each key must be there."""
    true = [(row["key"], row["n"]) for row in visible if truth.get((row["key"], row["n"])) == row["total"]]
    last = dict(sorted(truth))  # the highest n of each key
    return find_anomalies(
        [Row(key, n) for key, n in {*true, *last.items()}],
        [
            Row(
                row["key"] if truth.get((row["key"], row["n"])) == row["total"] else (row["key"], row["total"]),
                row["n"],
            )
            for row in visible
        ],
    )


def number_anomalies(sent: Iterable[int], visible: Iterable[int]) -> list[Anomaly]:
    """Of numbers, each of which is sent once, in a target without an order."""
    return find_anomalies([Row(n, 0) for n in sent], [Row(n, 0) for n in visible], ordered=False)


def assert_none(anomalies: Sequence[Anomaly], about: str = "") -> None:
    assert not anomalies, "\n".join([*([about] if about else []), *map(str, anomalies)])


def count_of(kind: str, anomalies: Iterable[Anomaly]) -> int:
    return sum(anomaly.count for anomaly in anomalies if anomaly.kind == kind)


def epochs_of(offsets: Path, topic: str, places: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """The epoch of each id, by Spark's own log of the query's offsets. `places` has the partition and offset of each id
    in `topic`. Spark removes old entries, so the epoch of some ids is not known."""
    ends: dict[int, dict[str, int]] = {}
    for file in offsets.iterdir() if offsets.exists() else ():
        lines = file.read_text().splitlines() if file.name.isdigit() else []
        if len(lines) > 2 and topic in (end := json.loads(lines[2])):
            ends[int(file.name)] = end[topic]
    found: dict[int, int] = {}
    for name, (partition, offset) in places.items():
        for epoch in sorted(ends):
            if offset < ends[epoch].get(str(partition), 0):
                if epoch == 0 or epoch - 1 in ends:
                    found[name] = epoch
                break
    return found


__all__ = [
    "DUPLICATE",
    "LOST",
    "assert_none",
    "copy_anomalies",
    "count_of",
    "epochs_of",
    "number_anomalies",
    "total_anomalies",
]
