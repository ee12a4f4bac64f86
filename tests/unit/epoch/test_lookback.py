"""What was committed last is looked for again before anything is aborted, and its loss has a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Decision, DecisionId, Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.deadline import Deadline
from penstock.epoch.lookback import refuse_lost_rows
from penstock.errors import CommittedRowsLost
from penstock.storage.storage import MemoryStorage

QUERY = "6a1c"


class Sinks:
    """Committers that have lost some writers; they remember what they were asked."""

    def __init__(self, *lost: int) -> None:
        self.lost, self.asked = lost, list[tuple[int, list[int]]]()

    def missing(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[tuple[str, int], str]:
        self.asked.append((epoch, [one.writer for one in committables]))
        return {one.id: f"say {one.writer}" for one in committables if one.writer in self.lost}


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(MemoryStorage())
    made.register({})
    return made


def decide(ledger: Ledger, epoch: int, rows: int = 5, generation: int = 1) -> tuple[Committable, ...]:
    ones = tuple(Committable("out", n, rows, 0, {"name": f"{epoch}-{n}-{generation}"}) for n in range(2))
    ledger.decide(
        Decision(DecisionId(epoch, generation), ones, 0), query=QUERY, barrier="b", offsets="o", history="h",
        stateful=False,
    )  # fmt: skip
    return ones


def look(ledger: Ledger, epoch: int, sinks: Sinks, query: str = QUERY) -> None:
    asked: Any = sinks
    refuse_lost_rows(ledger, query, epoch, asked, "shop", Deadline(5))


def test_the_newest_complete_epoch_with_rows_is_asked_for(ledger: Ledger) -> None:
    for epoch, rows in enumerate((5, 5, 0, 0)):
        decide(ledger, epoch, rows)
    decide(ledger, 4)
    sinks = Sinks()
    look(ledger, 4, sinks)
    assert sinks.asked == [(1, [0, 1])], "the next epoch is not complete, and those before it had no rows"


def test_of_several_decisions_the_last_generation_counts(ledger: Ledger) -> None:
    decide(ledger, 0)
    ledger.register({})
    decide(ledger, 0, generation=2)
    asked: list[str] = []

    class Naming(Sinks):
        def missing(
            self, epoch: int, committables: Sequence[Committable], deadline: Deadline
        ) -> Mapping[tuple[str, int], str]:
            asked.extend(str(one.payload["name"]) for one in committables)
            return {}

    look(ledger, 1, Naming())
    assert asked == ["0-0-2", "0-1-2"]


def test_a_loss_is_named_with_its_rows_and_how_to_go_on(ledger: Ledger) -> None:
    decide(ledger, 0)
    with pytest.raises(CommittedRowsLost, match=r"Epoch 0 of query 'shop' was committed, and 5 of its rows") as lost:
        look(ledger, 1, Sinks(1))
    assert "say 1" in lost.value.to_do
    assert "say 0" not in lost.value.to_do
    assert not lost.value.retryable


def test_a_loss_that_somebody_has_ruled_on_is_none(ledger: Ledger) -> None:
    ones = decide(ledger, 0)
    ledger.rule(0, QUERY, ones[:1], Outcome.COMMITTED)
    look(ledger, 1, Sinks(0))
    with pytest.raises(CommittedRowsLost):
        look(ledger, 1, Sinks(0, 1))


def test_nothing_is_asked_where_nothing_is_complete(ledger: Ledger) -> None:
    sinks = Sinks(0, 1)
    look(ledger, 0, sinks)
    look(ledger, 3, sinks)
    decide(ledger, 0)
    look(ledger, 0, sinks)
    look(ledger, 1, sinks, query="another")
    assert sinks.asked == []
