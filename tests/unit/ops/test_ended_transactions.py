"""What became of the transactions of complete epochs, by the ledger alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Decision, DecisionId
from penstock.checkpoint.ledger import Ledger
from penstock.engine.settlement import JobLedgers
from penstock.ops.server.runs import transactions_at
from penstock.ops.transactions import ENDED_MOST, ended
from penstock.storage.local import LocalStorage

BARRIER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"n":1}'


class World:
    """A job's folder with so many complete epochs, and one that is begun."""

    def __init__(self, root: Path, complete: int) -> None:
        self.folder = root / "orders"
        log = self.folder / "copy" / "spark"
        for folder in ("offsets", "commits"):
            (log / folder).mkdir(parents=True)
        for number in range(complete + 1):
            (log / "offsets" / str(number)).write_text(BARRIER)
        for number in range(complete):
            (log / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (log / "metadata").write_text('{"id":"q-1"}')
        self.ledger = Ledger(LocalStorage(self.folder / "copy" / "ledger"))
        self.facts: dict[str, Any] = {"job": "orders", "sinks": ["copy"], "sources": [], "history": "spark"}

    def decide(self, epoch: int, generation: int, *names: str) -> None:
        while self.ledger.newest_generation() < generation:
            self.ledger.register(self.facts)
        writers = [Committable("copy", at, 5, 0, {"transactional_id": name}) for at, name in enumerate(names)]
        empty = Committable("copy", 99, 0, 0, {})
        self.ledger.decide(Decision(DecisionId(epoch, generation), (*writers, empty)), query="q-1", barrier=None)

    def states(self) -> dict[str, str]:
        found = transactions_at(self.folder)["transactions"]
        assert len({one["id"] for one in found}) == len(found)
        return {one["id"]: one["state"] for one in found}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, 3)


def test_what_complete_epochs_decided_is_committed_and_what_comes_next_is_not(world: World) -> None:
    world.decide(1, 1, "a", "b")
    world.decide(2, 1, "c")
    world.decide(3, 1, "d")  # decided, and not complete
    assert world.states() == {"a": "committed", "b": "committed", "c": "committed", "d": "prepared"}


def test_an_older_decision_is_lost_where_a_newer_one_does_not_keep_it(world: World) -> None:
    world.decide(1, 1, "a", "b")
    world.decide(1, 2, "a", "b again")  # one writer was rewritten
    world.decide(2, 1, "c")
    world.decide(2, 3, "c again")  # nothing of it was left
    assert world.states() == {
        "a": "committed", "b": "lost", "b again": "committed", "c": "lost", "c again": "committed",
    }  # fmt: skip


def test_only_the_newest_epochs_are_listed_and_not_too_many(tmp_path: Path) -> None:
    world = World(tmp_path, 9)
    for epoch in range(9):
        world.decide(epoch, 1, *(f"{epoch}-{writer}" for writer in range(40)))
    found = ended(JobLedgers.at(str(world.folder)))
    assert len(found) == ENDED_MOST
    assert [one.epoch for one in found] == [8] * 40 + [7] * 40 + [6] * 20
    assert {one.epoch for one in ended(JobLedgers.at(str(world.folder)), epochs=1)} == {8}


def test_of_another_query_s_decisions_nothing_is_said(world: World) -> None:
    """The checkpoint was replaced."""
    world.ledger.register(world.facts)
    old = Decision(DecisionId(2, 1), (Committable("copy", 0, 5, 0, {"transactional_id": "old"}),))
    world.ledger.decide(old, query="q-0", barrier=None)
    assert world.states() == {}
