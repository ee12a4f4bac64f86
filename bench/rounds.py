"""Rounds over several systems in turn, on a machine that is watched: a round that others disturbed is done again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from neighbours import Neighbours
from systems import System

console = Console()
Found = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How many rounds, how much of a core others may use during one, and how often it is then done again."""

    rounds: int
    most_other_cores: float
    repeats: int


def interleave(
    what: str,
    systems: Sequence[System],
    plan: Plan,
    measure: Callable[[System, str], Found],
    said: Callable[[Found], str],
) -> dict[str, list[Found]]:
    """The rounds of each system by its name. `measure` is given the system and a name that nothing else has; every
    second round goes the other way round. Of several tries of one round the quietest counts."""
    found: dict[str, list[Found]] = {one.name: [] for one in systems}
    for number in range(plan.rounds):
        for system in systems if number % 2 == 0 else reversed(systems):
            tries: list[Found] = []
            while not tries or (tries[-1]["other_cores"] > plan.most_other_cores and len(tries) <= plan.repeats):
                name = "-".join([*what.split(), *system.name.replace(",", "").split(), str(number), str(len(tries))])
                with Neighbours() as others:
                    one = measure(system, name)
                tries.append({**one, "other_cores": round(others.cores, 2)})
                console.print(f"  {what}, {system.name}: {said(one)}{others.remark}")
            quietest = min(tries, key=lambda one: one["other_cores"])
            found[system.name].append({**quietest, "tries": len(tries)})
    return found


@dataclass(frozen=True)
class Spread:
    """What rounds told of one figure."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]], figure: str) -> Spread:
        values = [float(one[figure]) for one in rounds]
        return cls(statistics.median(values), min(values), max(values))
