"""Requests to end a transaction that arrive late, in every order there is: none ends a transaction it was not sent for.

The broker is a model of what matters: it knows a producer by id and epoch, not a transaction, so an `EndTxn` ends
whatever the producer has open when it arrives. Committers (the coordinator's and the drainer's), the merge of their
hints and the pool of producers are the real ones. Each request may be answered, lost, or late: then it arrives after
any later step, also once a later transaction is open. Walked through exhaustively, for three epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable
from penstock.deadline import Deadline
from penstock.engine import inflight as manager
from penstock.sinks.kafka import transactions
from penstock.sinks.kafka.committer import KafkaCommitter
from penstock.sinks.kafka.pool import Key, Pool
from penstock.sinks.kafka.transactions import SILENT, Described, Ended, Ending, TransactionClient
from tests.support.fake_sleep import sleeping

EPOCHS = 3
FATES = ("answered", "lost", "late")


class Harm(Exception):
    """A transaction was ended that nobody had decided, or by a request for another one."""


class Broker(TransactionClient):
    """`open` has each producer's transaction; requests that are `late` come when the test says so."""

    def __init__(self, fates: Iterator[str]) -> None:
        self._fates, self._clock = fates, itertools.count(1000)
        self.states: dict[str, Described] = {}
        self.rows: dict[str, int] = {}  # the epoch whose rows the open transaction holds
        self.decided: set[int] = set()
        self.visible: list[int] = []
        self.late: list[tuple[Ending, bool]] = []
        self.asked = 0

    def begin(self, name: str, epoch: int) -> None:
        self.states[name] = Described("Ongoing", hash(name), 0, next(self._clock))
        self.rows[name] = epoch

    def arrive(self, ending: Ending, commit: bool) -> None:
        state = self.states[ending.transactional_id]
        if not state.open:
            return
        epoch = self.rows[ending.transactional_id]
        if commit and epoch not in self.decided:
            raise Harm(f"epoch {epoch} is committed, and was never decided")
        if not commit and epoch in self.decided:
            raise Harm(f"epoch {epoch} is aborted, and was decided")
        self.states[ending.transactional_id] = Described(
            "CompleteCommit" if commit else "CompleteAbort", state.producer_id, state.producer_epoch, state.started
        )
        if commit:
            self.visible.append(epoch)

    def deliver_late(self) -> None:
        waiting, self.late = self.late, []
        for ending, commit in waiting:
            self.arrive(ending, commit)

    # What a committer asks

    def describe(self, ids: Iterable[str], deadline: Deadline, since: Any = None) -> Mapping[str, Described]:
        return {name: self.states[name] for name in ids if name in self.states}

    def end(self, endings: Sequence[Ending], commit: bool, deadline: Deadline) -> Mapping[str, Ended]:
        told: dict[str, Ended] = {}
        for ending in endings:
            self.asked += 1
            fate = next(self._fates, "answered")
            if fate == "answered":
                self.arrive(ending, commit)
            elif fate == "late":
                self.late.append((ending, commit))
            told[ending.transactional_id] = Ended(0, True) if fate == "answered" else Ended(SILENT, False)
        return told

    def list_open(self, prefix: str, deadline: Deadline) -> Sequence[str]:
        return sorted(name for name, state in self.states.items() if state.open and name.startswith(prefix))

    def fence(self, ids: Collection[str], deadline: Deadline, since: Any = None) -> Collection[str]:
        return ()

    def evidence(self, committable: Committable, deadline: Deadline) -> str:
        return ""

    def close(self) -> None: ...


class Producer:
    """A writer's; the pool keeps it. Its own commit finds its transaction ended."""

    def __init__(self, _: Mapping[str, str], transactional_id: str) -> None:
        self.transactional_id, self.sequence, self.after = transactional_id, 0, -1

    def commit(self) -> bool:
        return True

    def abort(self) -> bool:
        return True

    def destroy(self) -> None: ...

    def abandon(self) -> None: ...


def play(fates: Sequence[str], arrivals: Sequence[bool]) -> Broker:
    """Epoch after epoch: prepared, decided, committed by the coordinator; where that is not proven, by the drainer.
    What is late arrives behind an epoch's beginning wherever `arrivals` says so."""
    broker = Broker(iter(fates))
    pool, key = Pool(Producer), Key("job-u", 1, ())  # type: ignore[arg-type]
    own, drainers = KafkaCommitter(broker, "job-u", 1), KafkaCommitter(broker, "job-u", 1)
    for epoch, arrives in zip(range(EPOCHS), arrivals, strict=True):
        hints = manager._newest(own.hints(), drainers.hints())
        producer: Any = pool.acquire(key, hints)
        producer.sequence += 1
        broker.begin(producer.transactional_id, epoch)
        if arrives:
            broker.deliver_late()
        payload = {"transactional_id": producer.transactional_id, "sequence": producer.sequence}
        payload |= {"after": producer.after, "topics": ["t"]}
        pool.park(key, producer)
        [sealed] = own.seal([Committable("u", 0, 1, 0, payload)], Deadline(5))
        broker.decided.add(epoch)
        for committer in (own, drainers, drainers):
            if committer.commit(epoch, [sealed], Deadline(0.0005))[0].visible:
                break
        else:
            return broker  # unknown: the run ends here, and the next one has producers of its own
    broker.deliver_late()
    return broker


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions.UNSURE, "_ids", {})
    sleeping(monkeypatch, "penstock.sinks.kafka.committer", lambda _: None)


def everything() -> Iterator[tuple[tuple[str, ...], tuple[bool, ...]]]:
    for fates in itertools.product(FATES, repeat=4):
        for arrivals in itertools.product((False, True), repeat=EPOCHS):
            yield fates, arrivals


def test_no_request_ends_what_it_was_not_sent_for() -> None:
    ends = 0
    for fates, arrivals in everything():
        broker = play(fates, arrivals)
        assert len(broker.visible) == len(set(broker.visible)), (fates, arrivals)
        ends += sorted(broker.visible) == list(range(EPOCHS))
    assert ends > 100, "too few ways lead to the end"


@pytest.mark.parametrize("mutant", ["each committer knows its own lost answers only", "lost answers are forgotten"])
def test_without_that_knowledge_it_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "lost answers are forgotten":
        monkeypatch.setattr(transactions.Unsure, "add", lambda self, ids: None)
    else:
        monkeypatch.setattr(transactions.Unsure, "newest", lambda self, prefix, most: [])
        monkeypatch.setattr(transactions.Unsure, "__contains__", lambda self, name: False)
    with pytest.raises(Harm, match="was never decided"):
        for fates, arrivals in everything():
            play(fates, arrivals)
