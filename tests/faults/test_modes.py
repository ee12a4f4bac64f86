"""Each mode keeps its promise under a real kill, and no more than that: the weaker ones really are weaker."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.fault_case import Case, running
from tests.support.kafka import assert_nothing_open
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, SECOND = 100, 50


@dataclass(frozen=True)
class Verdict:
    """Of the rows that the killed run was working on."""

    lost: int
    doubled: int


def kill_and_go_on(world: Case, point: str, session: SparkSession) -> Verdict:
    """One run dies at `point` of its first epoch with rows; the next one, inside this process, takes what it finds, and
    some more rows."""
    world.source.feed(FIRST)
    run = world.start({point: "crash"})
    assert run.wait() == -signal.SIGKILL, run.tail()
    assert world.acted(point)
    world.source.feed(SECOND)
    fed = {row.id for row in world.source.rows[FIRST:]}

    with running(world.build(session)) as following:

        def is_there() -> bool:
            if not following.alive:
                following.join()
            return fed <= {row["id"] for row in world.copy.read()}

        until(is_there, "the rows fed after the kill")
        following.stop()
    assert_nothing_open(world.servers, world.config.name)
    counts = Counter(row["id"] for row in world.copy.read())
    assert all(counts[number] == 1 for number in fed), "an epoch that nobody killed is delivered once in every mode"
    first = [counts[row.id] for row in world.source.rows[:FIRST]]
    return Verdict(lost=first.count(0), doubled=sum(count > 1 for count in first))


@pytest.mark.long
def test_exactly_once_neither_loses_nor_doubles(case: Callable[..., Case], session: SparkSession) -> None:
    """At the very kill at which at-least-once doubles; this one and all others: `test_several_sinks.py`."""
    assert kill_and_go_on(case(), "epoch.committed", session) == Verdict(lost=0, doubled=0)


def test_at_least_once_doubles_and_never_loses(case: Callable[..., Case], session: SparkSession) -> None:
    """Killed after the tasks made their rows visible, before Spark logged the epoch."""
    verdict = kill_and_go_on(case(checkpoints={"mode": "at_least_once"}), "epoch.committed", session)
    assert verdict.lost == 0
    assert verdict.doubled > 0


def test_at_most_once_loses_and_never_doubles(case: Callable[..., Case], session: SparkSession) -> None:
    """Killed after the epoch was begun, before its rows became visible."""
    verdict = kill_and_go_on(case(checkpoints={"mode": "at_most_once"}), "epoch.confirmed", session)
    assert verdict.doubled == 0
    assert verdict.lost > 0


@pytest.mark.long
def test_at_most_once_does_not_double_what_was_visible(case: Callable[..., Case], session: SparkSession) -> None:
    """The very kill at which at-least-once doubles."""
    verdict = kill_and_go_on(case(checkpoints={"mode": "at_most_once"}), "epoch.committed", session)
    assert verdict.doubled == 0
