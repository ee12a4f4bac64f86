"""The driver's requests to a cluster whose coordinators move."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace as Answer
from typing import Any
from zlib import crc32

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.deadline import Deadline
from penstock.errors import AccessDenied, SystemUnavailable
from penstock.kafka import errors
from penstock.kafka.connections import NotSent
from penstock.sinks.kafka.committer import KafkaCommitter
from penstock.sinks.kafka.transactions import TransactionClient, _probes

NAME = "job-u-g000001-0123456789ab"
P, E, S = 7, 3, 1000


class Brokers:
    """Broker 1 was the coordinator of every id and does not know that broker 2 is now."""

    servers = "here"

    def __init__(self, refusal: object, *, started: int, before: int = S, state: str = "Ongoing") -> None:
        self.refusal, self.started, self.before, self.state = refusal, started, before, state
        self.found = 1  # whom the next FindCoordinator names
        self.ended: list[int] = []
        self.described: list[int | None] = []

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        return [self._answer(node, request) for node, request in requests]

    def _answer(self, node: int | None, request: Any) -> object:
        kind = type(request).__name__
        if kind == "FindCoordinatorRequest":
            found = [Answer(key=key, error_code=0, node_id=self.found) for key in request.coordinator_keys]
            return Answer(coordinators=found)
        if kind == "DescribeTransactionsRequest":
            self.described.append(node)
            if len(self.described) > 2:
                self.found = 2  # by now the one asked has heard of it
            state = Answer(
                transactional_id=NAME,
                error_code=0,
                transaction_state=self.state,
                producer_id=P,
                producer_epoch=E,
                transaction_start_time_ms=self.before if node == 1 else self.started,
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


def asked(brokers: Brokers) -> TransactionClient:
    return TransactionClient(brokers, transaction_timeout=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["Ongoing", "CompleteCommit"])
def test_what_began_before_is_a_former_coordinators_memory_and_asked_again(state: str) -> None:
    brokers = Brokers(None, started=S, before=S - 1, state=state)
    assert asked(brokers).describe([NAME], Deadline(2), {NAME: S})[NAME].started == S
    assert brokers.described == [1, 1, 1, 2]


@pytest.mark.parametrize("since", [{}, {NAME: S - 1}, {"another": S}])
def test_without_a_later_start_the_first_answer_counts(since: dict[str, int]) -> None:
    brokers = Brokers(None, started=S, before=S - 1)
    assert asked(brokers).describe([NAME], Deadline(2), since)[NAME].started == S - 1
    assert brokers.described == [1]


@pytest.mark.parametrize(("before", "believed"), [(-1, True), (0, False)])
def test_an_id_with_no_transaction_is_no_memory_of_one(before: int, believed: bool) -> None:
    brokers = Brokers(None, started=-1, before=before, state="Empty")
    assert asked(brokers).describe([NAME], Deadline(2), {NAME: S})[NAME].started == -1
    assert brokers.described == ([1] if believed else [1, 1, 1, 2])


def test_no_former_coordinator_says_that_a_transaction_is_fenced() -> None:
    brokers = Brokers(None, started=S, before=S - 1, state="CompleteAbort")
    assert asked(brokers).fence([NAME], Deadline(2), {NAME: S}) == set()
    assert brokers.described == [1, 1, 1, 2]


class Bereft:
    """Three brokers of which the third has died. Some time later the cluster notices, and some time after that the
    second has loaded what the third had coordinated. Until then no broker lists it. A time is a number of requests."""

    servers = "here"

    def __init__(self, notices: int, loads: int) -> None:
        self.notices, self.loads, self.sent = notices, loads, 0

    @property
    def noticed(self) -> bool:
        return self.sent >= self.notices

    def ask(self, question: Any, deadline: Deadline) -> Any:
        if question.__name__ == "_brokers":
            return {1, 2, 3}, True
        if question.__name__ == "_living":
            return {1, 2} if self.noticed else {1, 2, 3}
        raise AccessDenied("This user may not describe the coordinators' log.")

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        self.sent += 1
        return [self._answer(node, request) for node, request in requests]

    def _answer(self, node: int | None, request: Any) -> Any:
        kind, loaded = type(request).__name__, self.sent >= self.loads
        if kind == "FindCoordinatorRequest":
            new = 2 if self.noticed else 3
            keys = request.coordinator_keys
            found = [Answer(key=key, error_code=0, node_id=(1, new)[crc32(key.encode()) % 2]) for key in keys]
            return Answer(coordinators=found)
        if node == 3:
            return NotSent()
        if kind == "DescribeTransactionsRequest":
            code = errors.TRANSACTIONAL_ID_NOT_FOUND if node == 1 or loaded else errors.NOT_COORDINATOR
            states = [Answer(transactional_id=name, error_code=code) for name in request.transactional_ids]
            return Answer(transaction_states=states)
        names = {1: ["job-a"], 2: ["job-b", *(["job-c"] if loaded else [])]}[node or 0]
        return Answer(error_code=0, transaction_states=[Answer(transactional_id=name) for name in names])


@pytest.mark.parametrize("loads", range(12))
@pytest.mark.parametrize("notices", range(6))
def test_what_a_dead_broker_had_open_is_found_once_another_has_loaded_it(notices: int, loads: int) -> None:
    client = TransactionClient(Bereft(notices, loads), transaction_timeout=60)  # type: ignore[arg-type]
    assert client.list_open("job-", Deadline(5)) == ["job-a", "job-b", "job-c"]


def test_a_coordinator_that_loads_nothing_in_time_is_named() -> None:
    client = TransactionClient(Bereft(0, 10**9), transaction_timeout=60)  # type: ignore[arg-type]
    with pytest.raises(SystemUnavailable, match="has not loaded its log"):
        client.list_open("job-", Deadline(1))


def java_hash(text: str) -> int:
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) % 2**32
    return value - 2**32 if value >= 2**31 else value


def test_every_partition_of_the_coordinators_log_has_its_probe() -> None:
    for partitions in (1, 4, 50):
        probes = _probes("jöb:out", partitions)
        assert all(name.startswith("jöb:out") for name in probes), "a user may have rights for the prefix alone"
        assert sorted(abs(java_hash(name)) % partitions for name in probes) == list(range(partitions))
