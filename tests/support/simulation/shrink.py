"""A failing history made as simple as it can be, and told."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.simulation.schedule import Fault, shrunk
from tests.support.simulation.world import Setup, Verdict, World, smaller


def simplest(setup: Setup, faults: Sequence[Fault], seed: int) -> tuple[Setup, list[Fault], Verdict]:
    """The smallest job and the fewest faults that still show an anomaly of the same kind."""
    kind = _kind(World(setup, faults, seed).run())

    def fails(setup: Setup, faults: Sequence[Fault]) -> bool:
        return _kind(World(setup, faults, seed).run()) == kind

    left = shrunk(faults, lambda less: fails(setup, less))
    for number in range(len(smaller(setup))):
        less = smaller(setup)[number]
        if less != setup and fails(less, left):
            setup = less
    left = shrunk(left, lambda less: fails(setup, less))
    return setup, left, World(setup, left, seed).run()


def _kind(verdict: Verdict) -> str:
    """What is wrong, without its numbers."""
    if not verdict.anomalies:
        return ""
    sink, _, what = verdict.anomalies[0].partition(": ")
    return "stuck" if sink == "stuck" else what.partition(":")[0].partition(" ")[0] + what[:4]


def told(setup: Setup, faults: Sequence[Fault], verdict: Verdict) -> str:
    """For people."""
    lines = [f"A job with {setup}.", "What goes wrong on the way:"]
    lines += [f"  {number}. {fault}" for number, fault in enumerate(faults, 1)] or ["  nothing"]
    lines += ["The history:", *(f"  {line}" for line in verdict.story)]
    lines += ["The end:", *(f"  ⇒ {anomaly}" for anomaly in verdict.anomalies)]
    return "\n".join(lines)
