"""Judges what readers saw while a job ran: each epoch whole, or nothing of it.

A verdict is a value: `ok` for programs, `lines()` for people, `to_dict()` for files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sizes = Mapping[str, Mapping[int, int]]  # the size of each epoch, by sink: `sizes[sink][epoch]`
#: When the commit of each epoch began (the decision) and when it was complete, by sink.
Commits = Mapping[str, Mapping[int, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Observation:
    """What one reader saw at one instant: `seen[sink][epoch]` rows. Looking takes time: it began `at` and lasted `took`
    seconds. `settled`: no commit can have been in progress (the job has recovered, or has ended), so the sinks of one
    epoch must agree. Sinks that are not named were not read."""

    at: float
    seen: Sizes
    settled: bool = False
    reader: str = "reader"
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A state that a reader should not have seen."""

    kind: str
    at: float
    reader: str
    sink: str
    epoch: int
    seen: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.reader} saw {self.seen:,} of {self.size:,} rows of epoch {self.epoch} in {self.sink}"
        )


@dataclass(frozen=True, slots=True)
class AtomicityVerdict:
    """The result of all observations."""

    observations: int
    epochs: int  # epochs seen whole at least once, over all sinks
    sightings: Sequence[Sighting] = ()
    under_way: int = 0  # parts of an epoch seen while its commit was under way

    @property
    def ok(self) -> bool:
        return not self.sightings

    def count(self, kind: str) -> int:
        """How many sightings are of this kind."""
        return sum(sighting.kind == kind for sighting in self.sightings)

    def lines(self) -> list[str]:
        head = f"{self.observations:,} looks by readers, {self.epochs:,} epochs seen"
        if self.ok:
            apart = f", but for {self.under_way:,} looks into a commit under way" if self.under_way else ""
            return [f"{head}: each wholly or not at all{apart}"]
        return [f"{head}: {len(self.sightings):,} findings", *map(str, self.sightings[:5])]

    def to_dict(self) -> dict[str, Any]:
        kinds = sorted({sighting.kind for sighting in self.sightings})
        findings, examples = {kind: self.count(kind) for kind in kinds}, list(map(str, self.sightings[:5]))
        counts = {"observations": self.observations, "epochs": self.epochs, "under_way": self.under_way}
        return {"ok": self.ok, **counts, "findings": findings, "examples": examples}


def epoch_atomicity(
    observations: Iterable[Observation], sizes: Sizes, commits: Commits | None = None
) -> AtomicityVerdict:
    """Whether a reader ever saw a part of an epoch: observations against the sizes of all decided epochs.

    A reader looks several times while a job runs. With the true size of each epoch this shows what no final count can:

    | finding | meaning |
    |---|---|
    | `torn` | some rows of an epoch were there, others were not |
    | `doubled` | more rows of an epoch than it has |
    | `undecided` | rows of an epoch that was never decided, or of none |
    | `vanished` | an epoch the same reader had already seen was gone |
    | `gap` | an epoch was missing although a later one was there |
    | `split` | some sinks of an epoch had it and others had not, while no commit was in progress |
    | `early` | rows of an epoch were there before its commit began |

    Most systems cannot show a whole epoch in one instant: two files are two renames, two Kafka partitions two markers.
    With `commits`, a part of an epoch that was seen during its commit is no finding and counts as `under_way`, and any
    row before that is one. An epoch that is not in `commits` gets no such grace.
    """
    sightings: list[Sighting] = []
    whole: set[tuple[str, int]] = set()
    known: dict[tuple[str, str], set[int]] = {}
    looks = under_way = 0
    for look in sorted(observations, key=lambda observation: observation.at):
        looks += 1
        for sink, seen in look.seen.items():
            truth, spans = sizes.get(sink, {}), (commits or {}).get(sink, {})
            before = known.setdefault((look.reader, sink), set())
            for sighting in _one_sink(look, sink, truth, before):
                if sighting.kind in ("torn", "gap") and look.at < spans.get(sighting.epoch, (0.0, -math.inf))[1]:
                    under_way += sighting.kind == "torn"
                else:
                    sightings.append(sighting)
            there = {epoch for epoch, rows in seen.items() if rows}
            sightings += [
                _sighting("early", look, sink, epoch, truth)
                for epoch in sorted(there)
                if look.at + look.took < spans.get(epoch, (-math.inf, 0.0))[0]
            ]
            before |= there
            whole |= {(sink, epoch) for epoch in there if seen[epoch] == truth.get(epoch)}
        if look.settled:
            sightings += _agreement(look, sizes)
    return AtomicityVerdict(looks, len(whole), tuple(sightings), under_way)


def _sighting(kind: str, look: Observation, sink: str, epoch: int, truth: Mapping[int, int]) -> Sighting:
    return Sighting(kind, look.at, look.reader, sink, epoch, look.seen[sink].get(epoch, 0), truth.get(epoch, 0))


def _one_sink(look: Observation, sink: str, truth: Mapping[int, int], before: set[int]) -> Iterator[Sighting]:
    seen = look.seen[sink]
    newest = max((epoch for epoch, rows in seen.items() if rows), default=-1)
    for epoch in sorted({*seen, *truth}):
        rows, size = seen.get(epoch, 0), truth.get(epoch, 0)
        if rows == size:
            continue
        if rows == 0:
            if epoch not in before and epoch > newest:
                continue  # not there yet
            kind = "vanished" if epoch in before else "gap"
        elif size == 0:
            kind = "undecided"
        else:
            kind = "torn" if rows < size else "doubled"
        yield _sighting(kind, look, sink, epoch, truth)


def _agreement(look: Observation, sizes: Sizes) -> Iterator[Sighting]:
    sinks = [sink for sink in look.seen if sink in sizes]
    for epoch in sorted({epoch for sink in sinks for epoch in sizes[sink]}):
        parts = [sink for sink in sinks if sizes[sink].get(epoch, 0) > 0]
        there = [sink for sink in parts if look.seen[sink].get(epoch, 0) > 0]
        if there and len(there) < len(parts):
            yield from (_sighting("split", look, sink, epoch, sizes[sink]) for sink in parts if sink not in there)
