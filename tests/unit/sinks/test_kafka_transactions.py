"""The driver's requests to a cluster whose coordinators move."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace as Answer
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.deadline import Deadline
from penstock.kafka import errors
from penstock.kafka.connections import NotSent
from penstock.sinks.kafka.committer import KafkaCommitter
from penstock.sinks.kafka.transactions import TransactionClient

NAME = "job-u-g000001-0123456789ab"
P, E, S = 7, 3, 1000


class Brokers:
    """Broker 1 was the coordinator of every id and does not know that broker 2 is now."""

    servers = "here"

    def __init__(self, refusal: object, *, started: int) -> None:
        self.refusal, self.started = refusal, started
        self.found = 1  # whom the next FindCoordinator names
        self.ended: list[int] = []

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        return [self._answer(node, request) for node, request in requests]

    def _answer(self, node: int | None, request: Any) -> object:
        kind = type(request).__name__
        if kind == "FindCoordinatorRequest":
            found = [Answer(key=key, error_code=0, node_id=self.found) for key in request.coordinator_keys]
            return Answer(coordinators=found)
        if kind == "DescribeTransactionsRequest":
            state = Answer(
                transactional_id=NAME,
                error_code=0,
                transaction_state="Ongoing",
                producer_id=P,
                producer_epoch=E,
                transaction_start_time_ms=S if node == 1 else self.started,
                transaction_timeout_ms=1,
                topics=[],
            )
            return Answer(transaction_states=[state])
        assert node is not None
        self.ended.append(node)
        self.found = 2
        return self.refusal if node == 1 else Answer(error_code=0)

    def close(self) -> None: ...


def recovered(brokers: Brokers) -> dict[int, Outcome]:
    """What a new run proves of a decision that it did not make itself."""
    payload = {"transactional_id": NAME, "sequence": 1, "producer_id": P, "producer_epoch": E, "started": S}
    client = TransactionClient(brokers, transaction_timeout=60)  # type: ignore[arg-type]
    return dict(KafkaCommitter(client, "job-u", 2).commit(1, [Committable("u", 0, 1, 0, payload)], Deadline(2)))


REFUSALS = [Answer(error_code=errors.NOT_COORDINATOR), NotSent(), TimeoutError()]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["moved", "not sent", "silent"])
def test_a_moved_coordinator_is_asked_before_it_is_told_to_commit(refusal: object) -> None:
    """The old one's answer says nothing of the later, undecided transaction that the new one has open by now."""
    brokers = Brokers(refusal, started=S + 9)
    assert recovered(brokers) == {0: Outcome.ALREADY_COMMITTED}
    assert brokers.ended == [1]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["moved", "not sent", "silent"])
def test_what_a_moved_coordinator_still_has_open_is_committed(refusal: object) -> None:
    brokers = Brokers(refusal, started=S)
    assert recovered(brokers) == {0: Outcome.COMMITTED}
    assert brokers.ended == [1, 2]


class Bereft:
    """Three brokers of which the third has died; what it coordinated is with the second when the cluster notices."""

    servers = "here"

    def __init__(self) -> None:
        self.noticed = False
        self.rounds = 0

    def ask(self, question: Any, deadline: Deadline) -> Any:
        if question.__name__ == "_brokers":
            return {1, 2, 3}, True
        self.noticed = self.rounds > 1
        return {1, 2} if self.noticed else {1, 2, 3}

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        self.rounds += 1
        has = {1: ["job-a"], 2: ["job-b", *(["job-c"] if self.noticed else [])]}
        return [
            Answer(error_code=0, transaction_states=[Answer(transactional_id=name) for name in has[node]])
            if node in has
            else NotSent()
            for node, _ in requests
        ]


def test_what_a_dead_broker_had_open_is_found_at_the_one_that_took_it_over() -> None:
    client = TransactionClient(Bereft(), transaction_timeout=60)  # type: ignore[arg-type]
    assert client.list_open("job-", Deadline(5)) == ["job-a", "job-b", "job-c"]
