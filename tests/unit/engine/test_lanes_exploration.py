"""The protocol of lanes in every interleaving and with every crash there is, inside bounds; and proof that this can
fail. `lane_world.py` says what can happen and what is checked."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from penstock.contracts import lanes as lp
from penstock.contracts.lanes import Mark
from penstock.engine import lanes
from tests.support import lane_model
from tests.support.lane_world import Protocol, ReadEnd, Scenario, Unfenced, explore
from tests.support.walking import Violation

# A scenario, and how many states it has at least: the exploration cannot shrink without notice.
SCENARIOS = {
    "every call is a step": (Scenario(fine=True), 1_100),
    "three runs": (Scenario(runs=3, epochs=0), 1_900),
    "a commit has no answer": (Scenario(unsure=1), 8_000),
    "two commits have no answer": (Scenario(rows=((1,),), unsure=2, epochs=0), 5_000),
    "a transaction expires": (Scenario(rows=((1,),), expiries=1, retries=1), 3_500),
    "a task runs again": (Scenario(retries=1), 6_500),
    "three attempts at a task": (Scenario(runs=1, retries=2, epochs=0), 1_500),
    "two attempts, and a commit has no answer": (Scenario(runs=1, retries=1, unsure=1, epochs=0), 1_000),
    "slices are cut inside a source row": (Scenario(rows=((2, 0, 1),), epochs=0), 750),
    "batches end inside the input": (Scenario(rows=((2, 1),), batches=1, epochs=0), 3_000),
    "a batch ends without an answer": (Scenario(rows=((2,),), runs=1, batches=1, unsure=1), 1_200),
    "a clean stop": (Scenario(stops=1), 3_000),
    "a clean stop without an answer": (Scenario(rows=((1,),), alive=2, stops=1, unsure=1, epochs=0), 3_000),
    "two lanes": (Scenario(rows=((1,), (1,))), 2_500),
    "marks are lost": (Scenario(losses=1), 2_500),
    "marks are lost, and a task runs again": (Scenario(rows=((1,),), alive=2, losses=1, retries=1), 2_500),
    "restored": (Scenario(rows=((1,),), runs=4, restores=1, epochs=0), 6_500),
    "restored inside a source row": (Scenario(rows=((2,),), alive=2, runs=3, restores=1), 3_400),
    "restored into another folder": (Scenario(rows=((1,),), runs=4, restores=1, fresh=True, epochs=0), 6_500),
    "restored, and micro-batches": (Scenario(rows=((1,),), runs=3, restores=1, micro=1, epochs=0), 2_900),
    "micro-batches between": (Scenario(rows=((1, 1),), alive=2, runs=3, micro=2), 4_400),
    "a partition is added": (Scenario(rows=((0,), (1,)), added=1, epochs=0), 4_500),
    "a partition is added before micro-batches": (Scenario(rows=((0,), (1,)), alive=2, added=1, micro=1), 4_400),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_row_is_visible_once_and_every_run_can_be_followed_by_another(name: str) -> None:
    scenario, at_least = SCENARIOS[name]
    explored = explore(scenario)
    print(f"{name}: {explored.states:,} states, {explored.worlds:,} worlds")  # noqa: T201 (for pytest -rP)
    assert explored.states >= at_least


# Mutants. Each stands between the protocol and the world, and changes what one says to the other.

Meddler = Callable[[lp.Owner, Any], Generator[Any, Any, Any]]
"""Given an action of the protocol, does whatever it likes with the world, and returns the answer."""


def meddled(meddle: Meddler, *, drivers: bool = True, tasks: bool = True) -> Protocol:
    def through(owner: lp.Owner, coroutine: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            action = next(coroutine)
            while True:
                action = coroutine.send((yield from meddle(owner, action)))
        except StopIteration as end:
            return end.value

    def run_task(owner: lp.Owner, begun: Mark | None, *, multiplies: bool) -> Generator[Any, Any, Any]:
        return through(owner, lane_model.run_task(owner, begun, multiplies=multiplies))

    return Protocol(
        open_by_driver=(lambda owner: through(owner, lp.open_by_driver(owner))) if drivers else lp.open_by_driver,
        run_task=run_task if tasks else lane_model.run_task,
    )


def instead(kind: type, other: Callable[[Any], Any], **where: bool) -> Protocol:
    """Another action in the place of each of a kind."""

    def meddle(_: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        return (yield other(action) if isinstance(action, kind) else action)

    return meddled(meddle, **where)


def reading(change: Callable[[lp.Owner, Mark], Mark], **where: bool) -> Protocol:
    """What is read is taken for something else."""

    def meddle(owner: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        answer = yield action
        return change(owner, answer) if isinstance(action, lp.ReadMark) and answer else answer

    return meddled(meddle, **where)


def read_before_init() -> Protocol:
    found: dict[lp.Owner, Mark | None] = {}

    def meddle(owner: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        if isinstance(action, lp.Init):
            found[owner] = yield ReadEnd()
        return found[owner] if isinstance(action, lp.ReadMark) else (yield action)

    return meddled(meddle)


def mark_in_a_second_transaction() -> Protocol:
    def meddle(_: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        if isinstance(action, lp.SendMark):
            yield lp.Commit()
        return (yield action)

    return meddled(meddle, drivers=False)


def opening_mark_not_committed() -> Protocol:
    def meddle(_: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        if isinstance(action, lp.Commit):
            yield lp.Abort()
            return True
        return (yield action)

    return meddled(meddle, tasks=False)


def commit_again() -> Protocol:
    def meddle(_: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        while not (answer := (yield action)) and isinstance(action, lp.Commit):
            pass
        return answer

    return meddled(meddle)


def no_answer_is_good() -> Protocol:
    def meddle(_: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        answer = yield action
        return True if isinstance(action, lp.Commit) else answer

    return meddled(meddle, drivers=False)


def no_waiting() -> Protocol:
    """Where there is no mark, a task begins at the source's beginning."""

    def meddle(owner: lp.Owner, action: Any) -> Generator[Any, Any, Any]:
        answer = yield action
        return answer or Mark(owner.query, owner.generation, 0) if isinstance(action, lp.ReadMark) else answer

    return meddled(meddle, drivers=False)


def begin_without_ledger(owner: lp.Owner, known: lanes.Known, found: Mark | None) -> Mark:
    return lanes.begin(owner, replace(known, position=None, replaced=False), found)


def begin_at_the_mark(owner: lp.Owner, known: lanes.Known, found: Mark | None) -> Mark:
    """Also where the newest barrier is of micro-batches, or of another history."""
    return lanes.begin(owner, replace(known, lanes=owner.query, position=None), found)


def begin_at_the_ledger(owner: lp.Owner, known: lanes.Known, found: Mark | None) -> Mark:
    return lanes.begin(owner, replace(known, lanes=None), found)


# Only harm counts, unless the harm is that two runs fence each other.
TWO_RUNS = Scenario(strict=False)
UNSURE = replace(TWO_RUNS, unsure=1)
RESTORED = Scenario(rows=((1,),), runs=4, restores=1, epochs=0)
MICRO = replace(TWO_RUNS, runs=3, micro=2)
ADDED = replace(TWO_RUNS, rows=((0,), (1,)), alive=2, added=1, micro=1, epochs=0)

MUTANTS: dict[str, tuple[Protocol, Scenario, str]] = {
    "no fence": (instead(lp.Init, lambda _: Unfenced()), TWO_RUNS, "doubled"),
    "marks are read before the fence": (read_before_init(), TWO_RUNS, "doubled"),
    "marks are read up to the high watermark": (
        instead(lp.ReadMark, lambda _: ReadEnd(behind=True)),
        TWO_RUNS,
        "doubled",
    ),
    "the mark is in a second transaction": (mark_in_a_second_transaction(), TWO_RUNS, "doubled"),
    "generations are ignored": (
        reading(
            lambda owner, found: replace(found, generation=owner.generation) if found.query == owner.query else found
        ),
        Scenario(retries=1),
        "goes on in a lane",
    ),
    "the driver does not commit its mark": (opening_mark_not_committed(), Scenario(), "none was lost"),
    "a commit is sent again": (commit_again(), UNSURE, "doubled"),
    "a commit without an answer is taken for done": (no_answer_is_good(), UNSURE, "doubled|lost"),
    "parts are ignored": (
        instead(lp.SendMark, lambda action: lp.SendMark(replace(action.mark, part=0, digest=0))),
        replace(TWO_RUNS, rows=((2,),)),
        "doubled",
    ),
    "the ledger's bound is ignored": (Protocol(begin=begin_without_ledger), Scenario(losses=1), "doubled"),
    "another query's marks are believed": (
        reading(lambda owner, found: replace(found, query=owner.query, generation=owner.generation)),
        RESTORED,
        "goes on in a lane",
    ),
    "lanes are not closed before micro-batches": (Protocol(closes_lanes=False), MICRO, "doubled"),
    "lanes begin at old marks after micro-batches": (Protocol(begin=begin_at_the_mark), MICRO, "doubled"),
    "lanes begin at the ledger's positions": (Protocol(begin=begin_at_the_ledger), TWO_RUNS, "doubled"),
    "Spark starts before the first epoch": (Protocol(writes_first_epoch=False), TWO_RUNS, "doubled"),
    "a clean stop is for its own generation": (Protocol(end=lanes.begin), Scenario(stops=1), "after the clean stop"),
    "a task does not wait for its driver": (no_waiting(), ADDED, "doubled"),
    "no look after the fence": (Protocol(looks_again=False), RESTORED, "run 1 goes on in a lane that run 4"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_any_one_step_the_protocol_is_caught(name: str) -> None:
    mutant, scenario, complaint = MUTANTS[name]
    with pytest.raises(Violation, match=complaint):
        explore(scenario, mutant)


def test_rows_that_are_not_dropped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(place: lane_model.Place, row: lane_model.Row) -> bool:
        place.mark = replace(place.mark, offset=row.offset + 1)
        return True

    monkeypatch.setattr(lane_model.Place, "admit", admit)
    with pytest.raises(Violation, match="doubled"):
        explore(Scenario(retries=1))
