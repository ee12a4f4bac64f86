"""When to kill, and what the job's events say so far. Both are pure: events in, answers out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

Event: TypeAlias = "Mapping[str, Any]"

#: The steps of an epoch after which a kill may come. "any" is any line, and then some part of a second.
PHASES = ("opened", "precommitted", "decided", "committed", "any")


@dataclass(frozen=True, slots=True)
class Moment:
    """Once `rows` are committed, the next event `phase`, and then `delay` seconds."""

    rows: int
    phase: str
    delay: float


def moments(kills: int, rows: int, chance: random.Random) -> list[Moment]:
    """One moment for each kill, spread evenly over the run with some play, the phases mixed and all taken in turn."""
    phases: list[str] = []
    while len(phases) < kills:
        phases += chance.sample(PHASES, len(PHASES))
    plan = []
    for number, phase in enumerate(phases[:kills]):
        share = (number + chance.uniform(0.3, 0.9)) / (kills + 0.5)
        # Right after the line, or while its work goes on: both are moments at which machines die.
        delay = chance.uniform(0, 0.3) if phase == "any" else chance.choice((0.0, chance.uniform(0, 0.02)))
        plan.append(Moment(int(rows * share), phase, delay))
    return plan


@dataclass(slots=True)
class Progress:
    """What is known of the run. `take` every event, `note_start` and `note_kill` at their time."""

    rows: int
    plan: list[Moment]
    committed: Counter[str] = field(default_factory=Counter)  # rows, by query
    epochs: set[tuple[str, int]] = field(default_factory=set)
    spans: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)  # decided, complete
    last: dict[str, Event] = field(default_factory=dict)  # the newest event of each query
    kills: list[str] = field(default_factory=list)  # what the job was doing
    recoveries: list[float] = field(default_factory=list)  # seconds from a restart to the first commit of new rows
    runs: int = 0
    _began: float = 0.0
    _actions: list[str] = field(default_factory=list)
    _has_committed: bool = False  # this run has committed an epoch

    def note_start(self, now: float) -> None:
        self.runs += 1
        self._began, self._actions, self._has_committed = now, [], False
        self.last.clear()

    def note_kill(self) -> str:
        """Note a kill; returns what the job was last seen doing."""
        newest = max(self.last.values(), key=lambda event: float(event["time"]), default=None)
        doing = "starting"
        if newest is not None:
            doing = f"{newest['query']} epoch {newest.get('epoch', '?')} {newest['event']}"
        self.kills.append(doing)
        return doing

    def take(self, event: Event) -> Iterator[str]:
        """Learn from one event; yields what a person may want to read about it."""
        name, query = str(event["event"]), str(event.get("query") or "")
        if query:
            self.last[query] = event
        if name == "recovered":
            self._actions.append(str(event.get("action", "none")))
        elif name == "decided":
            self.spans.setdefault(query, {}).setdefault(int(event["epoch"]), (float(event["time"]), math.inf))
        elif name == "committed":
            self._commit(query, event)
            if not event.get("recovery"):
                yield from self._note_recovery(float(event["time"]))
        elif name == "stopped" and not event.get("error"):
            yield from self._note_recovery(float(event["time"]))  # there was nothing left to commit
        elif name == "failed":
            yield f"{query or 'job'} failed: {event.get('error', 'no reason given')}"

    def _commit(self, query: str, event: Event) -> None:
        """A commit is under way from its decision until it is done, by the run that began it or by a later one, which
        then writes the event again. Where a run died before it wrote its decision, the beginning is not known."""
        epoch, time = int(event["epoch"]), float(event["time"])
        began, ended = self.spans.setdefault(query, {}).get(epoch, (-math.inf, math.inf))
        self.spans[query][epoch] = (began, min(ended, time))
        if (query, epoch) not in self.epochs:
            self.epochs.add((query, epoch))
            self.committed[query] += int(event.get("rows", 0))

    def _note_recovery(self, time: float) -> Iterator[str]:
        if not self._has_committed and self.kills:
            self.recoveries.append(time - self._began)
            actions = ", ".join(self._actions) or "nothing"
            yield f"recovered in {self.recoveries[-1]:.1f} s, to do was: {actions}"
        self._has_committed = True

    def line(self) -> str:
        done, kills = self.committed["payments"], len(self.kills)
        return f"{done:,} of {self.rows:,} rows, {len(self.epochs):,} epochs, {kills} of {len(self.plan)} kills"

    def kill_after(self, event: Event) -> float | None:
        """Seconds to wait before a kill, if this event is the moment for the next one. Only while the job has
        unfinished work, and has decided and committed something since it was started: a job that is killed faster than
        it can start proves nothing."""
        if len(self.kills) >= len(self.plan) or not self._has_committed:
            return None
        moment, done = self.plan[len(self.kills)], self.committed["payments"]
        ripe = moment.rows <= done < self.rows
        return moment.delay if ripe and moment.phase in ("any", event["event"]) else None
