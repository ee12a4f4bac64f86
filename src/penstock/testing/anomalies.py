"""An independent reader: what was sent, what is visible, and which anomalies that shows. It shares no code with writers
and committers.

| anomaly | means |
|---|---|
| lost write | a row that was sent, and whose epoch is complete, is not visible |
| duplicate | a row is visible more than once |
| aborted read | a visible row was never sent, or its transaction was aborted |
| torn transaction | one part of an epoch is visible and another is not |
| order within a key | a row comes before one of the same key that was sent earlier |
| skipped rows | a row is missing between visible ones of the same key |
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

LOST, DUPLICATE, ABORTED, TORN = "lost write", "duplicate", "aborted read", "torn transaction"
ORDER, SKIPPED = "order within a key", "skipped rows"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Row:
    """`sequence` counts the rows of one key in the order in which they were sent. `epoch`, where it is known, is the
    transaction that holds the row; two rows with the same key and sequence are the same row."""

    key: Hashable
    sequence: int
    epoch: int | None = None

    @property
    def id(self) -> tuple[Hashable, int]:
        return self.key, self.sequence

    def __str__(self) -> str:
        return f"{self.key}/{self.sequence}" + ("" if self.epoch is None else f" (epoch {self.epoch})")


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`count` rows, or epochs, of one kind, with a few examples."""

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) else ""
        return f"{self.kind}: {self.count} ({', '.join(self.examples)}{more})"


def find_anomalies(
    sent: Iterable[Row],
    visible: Iterable[Row],
    *,
    ordered: bool = True,
    complete: bool = True,
    aborted: Collection[tuple[Hashable, int]] = (),
) -> list[Anomaly]:
    """`visible` is in the order in which a reader gets the rows; only where that means nothing, as in a table without
    one, it is not `ordered`. Not `complete`: rows may still come, so none is lost yet. `aborted` are the ids of rows
    that were sent in transactions which were then aborted for good."""
    known = {row.id: row for row in sent}
    times: dict[tuple[Hashable, int], int] = {}
    last: dict[Hashable, int] = {}
    found: dict[str, list[str]] = {}

    def note(kind: str, example: object) -> None:
        found.setdefault(kind, []).append(str(example))

    for row in visible:
        if row.id not in known or row.id in aborted:
            note(ABORTED, row)
            continue
        times[row.id] = times.get(row.id, 0) + 1
        if times[row.id] == 2:
            note(DUPLICATE, known[row.id])
        elif ordered and times[row.id] == 1 and row.sequence < last.get(row.key, row.sequence):
            note(ORDER, f"{known[row.id]} after {last[row.key]}")
        last[row.key] = max(row.sequence, last.get(row.key, row.sequence))

    epochs: dict[int, list[bool]] = {}
    for name, row in known.items():
        there = name in times
        if row.epoch is not None and name not in aborted:
            epochs.setdefault(row.epoch, []).append(there)
        if there or name in aborted:
            continue
        if complete:
            note(LOST, row)
        if row.sequence < last.get(row.key, row.sequence):
            note(SKIPPED, row)
    for epoch, parts in sorted(epochs.items()):
        if any(parts) and not all(parts):
            note(TORN, f"epoch {epoch}: {sum(parts)} of {len(parts)} rows")
    return [Anomaly(kind, len(rows), tuple(rows[:_SHOWN])) for kind, rows in found.items()]
