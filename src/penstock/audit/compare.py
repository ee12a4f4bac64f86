"""What the ledger decided beside what a sink shows: one finding for each writer that differs. No I/O.

docs/how-to/audit.md says what each kind of finding means; three are those of `testing.anomalies`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.engine.hashing import U64, Layout, Values, finish, hash_rows
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST

MODULO = 1 << 64
CHANGED, NO_LONGER, NOT_PROVABLE = "changed rows", "no longer provable", "not provable"
ANOMALIES = (LOST, DUPLICATE, ABORTED, CHANGED)
KEPT_HASHES = 1 << 24  # 128 MiB: by them a surplus row finds its original


@dataclass(frozen=True, slots=True)
class Decided:
    """One writer of a decision that was carried out."""

    query: str
    sink: str
    epoch: int
    generation: int
    writer: int
    rows: int
    checksum: int
    payload: Mapping[str, Any] = field(default_factory=dict)


Later = Callable[[], Sequence[Decided]]
"""Asked when a place has been read: the other writers that may have become visible in it by then."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`rows` that are not accounted for; at least so many, where rows were changed."""

    kind: str
    query: str
    sink: str
    rows: int
    why: str
    epoch: int | None = None
    writer: int | None = None


class Part:
    """Visible rows that belong together: their number, and the sums of their hashes in each layout that may be meant.
    `where` names the place. Without `layouts` the rows are only counted."""

    def __init__(self, where: str = "", layouts: Sequence[Layout] = ()) -> None:
        self.where, self.layouts = where, layouts
        self.rows, self.sums, self.hashes = 0, [0] * len(layouts), list[U64]()

    def add(self, columns: Sequence[Values], rows: int) -> None:
        Part.add_all([self], [rows], columns)

    @staticmethod
    def add_all(parts: Sequence[Part], counts: Sequence[int], columns: Sequence[Values], *, keep: bool = True) -> None:
        """Rows of several parts, one after the other in the columns, hashed at once; `keep` the hash of each."""
        bounds = np.concatenate([[0], np.cumsum(counts)])
        layouts = parts[0].layouts
        chained = hash_rows(columns, int(bounds[-1])) if layouts else np.empty(0, np.uint64)
        running = [np.cumsum(np.append(np.uint64(0), finish(chained, columns, layout))) for layout in layouts]
        sums = [np.diff(total[bounds]) for total in running]  # modulo 2**64, as it is to be
        for number, (part, rows) in enumerate(zip(parts, counts, strict=True)):
            part.rows += rows
            part.sums = [total + int(more[number]) for total, more in zip(part.sums, sums, strict=True)]
            if layouts and keep:
                part.hashes.append(chained[bounds[number] : bounds[number + 1]])

    def merge(self, other: Part) -> None:
        self.rows += other.rows
        self.sums = [mine + more for mine, more in zip(self.sums, other.sums, strict=False)]  # of both, or none
        self.hashes += other.hashes

    def every_hash(self) -> U64:
        return np.concatenate([np.empty(0, np.uint64), *self.hashes])

    def without(self, copied: Part) -> Part:
        """The rows here that are no rows of `copied`."""
        copies = np.isin(self.every_hash(), copied.every_hash())
        rest = Part(self.where)
        rest.rows, rest.hashes = self.rows - int(copies.sum()), [self.every_hash()[~copies]]
        return rest


@dataclass
class Visible:
    """What a reader found in one sink. `group` says to which part the rows of a writer belong: where a place cannot
    tell writers apart, several have the same. `gone`: parts whose missing rows prove nothing, and why."""

    parts: dict[Hashable, Part] = field(default_factory=dict)
    others: list[Part] = field(default_factory=list)  # of no decided writer
    gone: dict[Hashable, str] = field(default_factory=dict)
    group: Callable[[Decided], Hashable] = lambda writer: (writer.epoch, writer.generation, writer.writer)
    unprovable: str = ""
    trusted: bool = False  # the columns are surely those that Spark hashed; else a checksum that fits must show it


def compare(decided: Sequence[Decided], visible: Visible, *, shared: bool = False) -> list[Finding]:
    """Everything in one sink that is not accounted for; `shared`: rows of other programs belong there."""
    groups: dict[Hashable, list[Decided]] = {}
    for writer in decided:
        groups.setdefault(visible.group(writer), []).append(writer)
    if visible.unprovable:
        return [_finding(NOT_PROVABLE, decided, 0, visible.unprovable)] if decided else []
    _find_moved(groups, visible)
    layout, confirmed = _layout(groups, visible)
    findings = list[Finding]()
    for key, writers in groups.items():
        part, rows = visible.parts.get(key, Part()), sum(writer.rows for writer in writers)
        total = part.sums[layout] % MODULO if part.sums else None
        if part.rows == rows and (total in (None, _sum(writers)) or not confirmed):
            continue
        if key in visible.gone:
            findings.append(_finding(NO_LONGER, writers, rows - part.rows, visible.gone[key]))
        elif part.rows == rows:
            findings.append(_finding(CHANGED, writers, 1, f"{rows} rows as decided, but others: {part.where}"))
        elif part.rows < rows:
            findings.append(_finding(LOST, writers, rows - part.rows, f"{part.rows} of {rows} rows are visible"))
        else:
            twice = part.rows - len(np.unique(part.every_hash()))
            kind = DUPLICATE if part.hashes and part.rows - rows <= twice else ABORTED
            why = f"{part.rows} rows are visible, {rows} were decided: {part.where}"
            findings.append(_finding(kind, writers, part.rows - rows, why))
    findings += _surplus(decided, groups, visible, shared)
    if decided and not confirmed:
        why = "no checksum of the ledger fits: columns cannot be read back as they were written, or all rows changed"
        findings.append(_finding(NOT_PROVABLE, decided, 0, why))
    return findings


def _find_moved(groups: Mapping[Hashable, list[Decided]], visible: Visible) -> None:
    """A part that is not where it was, but whose very rows are elsewhere in the place, is there."""
    for other in list(visible.others):
        for key, writers in groups.items():
            total, rows = _sum(writers), sum(writer.rows for writer in writers)
            if key not in visible.parts and rows == other.rows and total in (each % MODULO for each in other.sums):
                visible.parts[key] = other
                visible.others.remove(other)
                break


def _layout(groups: Mapping[Hashable, list[Decided]], visible: Visible) -> tuple[int, bool]:
    """The layout that the most checksums confirm; and whether any does, or there is none to ask."""
    votes, asked = Counter[int](), False
    for key, writers in groups.items():
        part = visible.parts.get(key)
        if part is not None and part.rows == sum(writer.rows for writer in writers):
            asked = True
            votes.update(number for number, total in enumerate(part.sums) if total % MODULO == _sum(writers))
    return votes.most_common(1)[0][0] if votes else 0, bool(votes) or not asked or visible.trusted


def _sum(writers: Sequence[Decided]) -> int:
    return sum(writer.checksum for writer in writers) % MODULO


def _surplus(
    decided: Sequence[Decided], groups: Mapping[Hashable, list[Decided]], visible: Visible, shared: bool
) -> Iterator[Finding]:
    """Rows of no decided writer: copies of a writer's rows, or rows that were never sent."""
    for other in visible.others:
        for key, part in visible.parts.items():
            rest = other.without(part) if key in groups else other
            if copies := other.rows - rest.rows:
                yield _finding(DUPLICATE, groups[key], copies, f"its rows are visible once more: {other.where}")
            other = rest
        if other.rows and not shared:
            yield _finding(ABORTED, decided, other.rows, f"no decided writer sent these rows: {other.where}")


def _finding(kind: str, writers: Sequence[Decided], rows: int, why: str) -> Finding:
    epochs, numbers = {writer.epoch for writer in writers}, {(writer.epoch, writer.writer) for writer in writers}
    epoch = next(iter(epochs)) if len(epochs) == 1 else None
    writer = next(iter(numbers))[1] if len(numbers) == 1 else None
    return Finding(kind, writers[0].query, writers[0].sink, rows, why, epoch, writer)
