"""From a job's events to the figures of the back-pressure benchmark. No clock, no job: only what was told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

Event = Mapping[str, Any]
VISIBLE = ("committed", "drained")


@dataclass(frozen=True, slots=True)
class Phases:
    """When, in seconds since 1970: the warm-up is over, the sink slows down, the sink is free again."""

    calm: float
    pressure: float
    relief: float


def figures(events: Sequence[Event], phases: Phases, rate: float) -> dict[str, Any]:
    """Everything that is printed of one variant, but what the topic holds."""
    spans = [(one["time"] - one["seconds"], one["time"]) for one in events if one["event"] == "completed"]
    before = [end - begin for begin, end in spans if phases.calm <= begin and end < phases.pressure]
    # One that was under way when the sink slowed down, or still is when it is free again, felt it.
    during = [end - begin for begin, end in spans if begin < phases.relief and end >= phases.pressure]
    ends = [phases.pressure, *(end for _, end in spans if phases.pressure <= end < phases.relief), phases.relief]
    logged = [one for one in events if one["event"] == "logged"]
    without, under = durations(before), durations(during)
    return {
        "without_pressure": without,
        "under_pressure": under,
        "p99_ratio": under["p99_ms"] / without["p99_ms"],
        "completed_under_pressure": len(ends) - 2,
        "longest_without_checkpoint_seconds": max(after - end for end, after in pairwise(ends)),
        "catch_up_seconds": catch_up(events, phases.relief, rate),
        "inflight_peak_bytes": max((one["backlog_bytes"] for one in logged), default=0),
        "inflight_peak_epochs": max((one["backlog"] for one in logged), default=0),
        "logged_without_pressure": sum(phases.calm <= one["time"] < phases.pressure for one in logged),
        "logged_under_pressure": sum(phases.pressure <= one["time"] < phases.relief for one in logged),
        "throttled": sum(one["event"] == "throttled" for one in events),
    }


def durations(seconds: Sequence[float]) -> dict[str, Any]:
    if not seconds:
        raise SystemExit("no checkpoint fell into a phase: give the phases more time")
    return {
        "checkpoints": len(seconds),
        "p50_ms": percentile(seconds, 50) * 1000,
        "p99_ms": percentile(seconds, 99) * 1000,
        "max_ms": max(seconds) * 1000,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values where none is exactly there, so that few values do not make it their largest."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def catch_up(events: Sequence[Event], relief: float, rate: float) -> float | None:
    """Seconds from the relief until every row that existed by then is visible; None while not all are.

    Rows come to be at `rate` from a moment that the source alone knows; no epoch can begin before the rows it takes are
    there, so the epoch that came closest to it tells the moment.
    """
    opened = {one["epoch"]: one["time"] for one in reversed(events) if one["event"] == "opened"}
    taken = rows_up_to(events)
    began = min(opened[epoch] - rows / rate for epoch, rows in taken.items())
    produced = (relief - began) * rate
    for one in events:
        if one["event"] in VISIBLE and taken[one["epoch"]] >= produced:
            return float(max(0.0, one["time"] - relief))
    return None


def visible_rows(events: Sequence[Event]) -> int:
    """How many rows the job says are visible; its input is numbered, and epochs become visible in order."""
    taken = rows_up_to(events)
    return max((taken[one["epoch"]] for one in events if one["event"] in VISIBLE), default=0)


def rows_up_to(events: Sequence[Event]) -> dict[int, int]:
    """By epoch, the rows of it and all before it."""
    own = {one["epoch"]: one["rows"] for one in events if one["event"] == "precommitted"}
    return dict(zip(sorted(own), accumulate(own[epoch] for epoch in sorted(own)), strict=True))
