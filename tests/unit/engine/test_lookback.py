"""What was committed last is looked for again before anything is aborted, and its loss has a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Decision, DecisionId, Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.deadline import Deadline
from penstock.engine.committers import refuse_lost_rows
from penstock.errors import CommittedRowsLost
from tests.support.memory_storage import MemoryStorage

QUERY = "6a1c"


class Sinks:
    """Committers that have lost some writers; they remember what they were asked."""

    def __init__(self, *lost: int, uids: Sequence[str] = ("out",)) -> None:
        self.lost, self.asked, self.uids = lost, list[tuple[int, list[int]]](), set(uids)

    def looking_back(self) -> set[str]:
        return set(self.uids)

    def missing(
        self, epoch: int, committables: Sequence[Committable], deadline: Deadline
    ) -> Mapping[tuple[str, int], str]:
        assert isinstance(deadline, Deadline)
        self.asked.append((epoch, [one.writer for one in committables]))
        return {one.id: f"say {one.writer}" for one in committables if one.writer in self.lost}


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(MemoryStorage())
    made.register({})
    return made


def decide(
    ledger: Ledger, epoch: int, rows: int = 5, generation: int = 1, sinks: Sequence[str] = ("out", "out")
) -> tuple[Committable, ...]:
    ones = tuple(Committable(sink, n, rows, 0, {"name": f"{epoch}-{n}-{generation}"}) for n, sink in enumerate(sinks))
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


def test_each_sink_is_asked_for_the_newest_epoch_that_had_rows_for_it(ledger: Ledger) -> None:
    """A database that lost epoch 0 is not excused by a topic that has epoch 2."""
    decide(ledger, 0, sinks=("table", "topic"))
    decide(ledger, 1, rows=0, sinks=("table", "topic"))
    decide(ledger, 2, sinks=("other", "topic", "topic"))
    sinks = Sinks(0, uids=("table", "topic", "never"))
    with pytest.raises(CommittedRowsLost, match=r"5 rows of epoch 0 .* in table any more"):
        look(ledger, 3, sinks)
    assert sinks.asked == [(2, [1, 2]), (0, [0])], "the program does not have the other any more"


def test_losses_of_several_epochs_are_named_together(ledger: Ledger) -> None:
    decide(ledger, 0, sinks=("table",))
    decide(ledger, 1, sinks=("topic",))
    with pytest.raises(CommittedRowsLost, match=r"5 rows of epoch 0 and 5 rows of epoch 1 .* in table, topic") as lost:
        look(ledger, 2, Sinks(0, uids=("table", "topic")))
    assert "say 0" in lost.value.to_do


def test_a_sink_without_rows_for_as_long_as_the_ledger_goes_back_is_asked(ledger: Ledger) -> None:
    decide(ledger, 5)
    for epoch in range(6, 90):
        decide(ledger, epoch, rows=0)
    with pytest.raises(CommittedRowsLost):
        look(ledger, 90, Sinks(0))


def test_no_more_is_read_than_is_needed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in range(5):
        decide(ledger, epoch)
    read: list[str] = []
    monkeypatch.setattr(ledger, "_body", lambda kind, name, body=ledger._body: read.append(name) or body(kind, name))
    look(ledger, 4, Sinks())
    assert read == ["epochs/0000000003.g00000001.json"]
    look(ledger, 4, Sinks(uids=()))
    assert len(read) == 1, "where no sink can tell, nothing is read"


def test_a_decision_that_was_replaced_by_one_without_rows_is_not_asked_for(ledger: Ledger) -> None:
    decide(ledger, 0)
    decide(ledger, 1)
    ledger.register({})
    decide(ledger, 1, rows=0, generation=2)
    sinks = Sinks()
    look(ledger, 2, sinks)
    assert sinks.asked == [(0, [0, 1])]


def test_a_loss_is_named_with_its_rows_and_how_to_go_on(ledger: Ledger) -> None:
    decide(ledger, 0)
    with pytest.raises(CommittedRowsLost, match=r"Query 'shop' has committed 5 rows of epoch 0 .* in out") as lost:
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
