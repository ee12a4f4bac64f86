"""When a worker may use a producer again."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import pyarrow as pa
import pytest

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.kafka.librdkafka import Endings
from penstock.sinks.kafka.pool import LIMIT, Key, Pool
from penstock.sinks.kafka.writer import KafkaWriter


class FakeProducer:
    """Remembers what was done to it; `healthy` is what commit and abort answer."""

    made: list[FakeProducer] = []

    def __init__(self, settings: Mapping[str, str], transactional_id: str) -> None:
        self.settings, self.transactional_id = settings, transactional_id
        self.sequence, self.after, self.healthy = 0, -1, True
        self.rows, self.topics = 0, {"t"}
        self.did: list[str] = []
        FakeProducer.made.append(self)

    def send(self, columns: Mapping[str, pa.Array], topic: str | None) -> None:
        self.rows += len(columns["value"])

    def flush(self) -> None: ...

    def begin(self) -> None:
        self.sequence += 1

    def commit(self) -> bool:
        self.did.append("commit")
        return self.healthy

    def abort(self) -> bool:
        self.did.append("abort")
        return self.healthy

    def destroy(self) -> None:
        self.did.append("destroy")

    def abandon(self) -> None:
        self.did.append("abandon")


KEY = Key("job-u", 3, (("bootstrap.servers", "s"), ("sasl.password", "hunter2")))


@pytest.fixture
def pool() -> Pool:
    FakeProducer.made = []
    return Pool(FakeProducer, limit=3)  # type: ignore[arg-type]


def prepared(pool: Pool, key: Key = KEY) -> FakeProducer:
    producer = pool.acquire(key, {})
    producer.begin()
    pool.park(key, producer)
    return producer  # type: ignore[return-value]


def test_names_are_unique_and_tell_the_run(pool: Pool) -> None:
    names = {KEY.transactional_id() for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("job-u-g000003-") and len(name) == len("job-u-g000003-") + 12 for name in names)
    assert "hunter2" not in repr(KEY)


def test_committed_by_the_driver_is_confirmed_and_reused(pool: Pool) -> None:
    first = prepared(pool)
    assert pool.acquire(KEY, {"committed": {first.transactional_id: 1}}) is first
    assert first.did == ["commit"]


@pytest.mark.parametrize("how", ["committed", "aborted"])
def test_a_producer_knows_when_the_transaction_began_that_the_driver_ended(pool: Pool, how: str) -> None:
    first = prepared(pool)
    assert first.after == -1
    again = pool.acquire(KEY, {how: {first.transactional_id: 1}, "started": {first.transactional_id: 1000, "x": 2000}})
    assert (again.after, first.did) == (1000, ["commit" if how == "committed" else "abort"])
    pool.release(KEY, again)
    assert pool.acquire(KEY, {"started": {"x": 2000}}).after == 1000, "the driver's hints forget, the producer does not"


def test_aborted_by_the_driver_is_reused(pool: Pool) -> None:
    first = prepared(pool)
    assert pool.acquire(KEY, {"aborted": {first.transactional_id: 1}}) is first
    assert first.did == ["abort"]


@pytest.mark.parametrize("hints", [{}, {"committed": {}}, {"aborted": {"other": 1}}])
def test_what_may_be_decided_is_left_alone(pool: Pool, hints: dict[str, dict[str, int]]) -> None:
    first = prepared(pool)
    assert pool.acquire(KEY, hints) is not first
    assert first.did == []


@pytest.mark.parametrize("how", ["committed", "aborted"])
def test_unsure_outweighs_all_else_that_is_said(pool: Pool, how: str) -> None:
    """Hints of several committers are put together; one that lost an answer is right, whatever the others know."""
    first = prepared(pool)
    name = first.transactional_id
    assert pool.acquire(KEY, {how: {name: 1}, "unsure": {name: True}}) is not first
    assert first.did == ["destroy"]


def test_an_earlier_transaction_of_the_same_producer_does_not_count(pool: Pool) -> None:
    first = prepared(pool)
    hints = {"committed": {first.transactional_id: 1}}
    again = pool.acquire(KEY, hints)
    again.begin()
    pool.park(KEY, again)
    assert pool.acquire(KEY, hints) is not first


def test_a_producer_that_does_not_recover_is_replaced(pool: Pool) -> None:
    first = prepared(pool)
    first.healthy = False
    assert pool.acquire(KEY, {"committed": {first.transactional_id: 1}}) is not first
    assert first.did == ["commit", "destroy"]


def test_an_older_run_is_freed_but_never_aborted(pool: Pool) -> None:
    first = prepared(pool)
    newer = Key(KEY.prefix, 4, KEY.settings)
    second = pool.acquire(newer, {"committed": {first.transactional_id: 1}})
    assert second is not first
    assert first.did == ["destroy"]


def test_other_settings_are_another_producer(pool: Pool) -> None:
    free = pool.acquire(KEY, {})
    pool.release(KEY, free)
    assert pool.acquire(Key(KEY.prefix, 3, (("bootstrap.servers", "elsewhere"),)), {}) is not free


def test_the_longest_unused_goes_first(pool: Pool) -> None:
    parked = [prepared(pool) for _ in range(5)]
    assert [producer.did for producer in parked] == [["destroy"], ["destroy"], [], [], []]
    assert len(pool) == 3


def test_one_producer_one_user(pool: Pool) -> None:
    free = pool.acquire(KEY, {})
    pool.release(KEY, free)
    assert pool.acquire(KEY, {}) is free
    assert pool.acquire(KEY, {}) is not free


def test_reclaiming(pool: Pool) -> None:
    first = prepared(pool)
    assert pool.reclaim(first)  # type: ignore[arg-type]
    assert not pool.reclaim(first)  # type: ignore[arg-type]


def test_a_forked_child_inherits_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool.acquire(KEY, {})
    pool.release(KEY, first)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert pool.acquire(KEY, {}) is not first
    assert first.did == ["abandon"]  # type: ignore[attr-defined]


def test_a_request_sent_again_without_an_answer_is_never_forgotten() -> None:
    endings = Endings()
    endings.begin(1)
    endings.begin(2)
    assert endings.sure(1)
    for _ in range(2):  # answered with "later", so asked again
        endings.sent(1)
        assert not endings.sure(1)
        endings.answered(1)
        endings.answered(1)  # each answer is told twice
    assert endings.sure(1)
    endings.sent(1)  # no answer, but a broken connection
    endings.sent(1)
    endings.answered(1)
    assert not endings.sure(1)
    assert endings.sure(2)
    endings.begin(1)  # another producer at the same address
    assert endings.sure(1)


def test_a_producer_is_made_with_the_settings_and_a_name_of_its_run(pool: Pool) -> None:
    producer = pool.acquire(KEY, {})
    assert producer.settings == {"bootstrap.servers": "s", "sasl.password": "hunter2"}  # type: ignore[attr-defined]
    assert producer.transactional_id.startswith("job-u-g000003-")


def test_clearing_frees_all_and_touches_no_transaction(pool: Pool) -> None:
    kept = [prepared(pool) for _ in range(2)]
    pool.clear()
    assert [producer.did for producer in kept] == [["destroy"], ["destroy"]]
    assert len(pool) == 0


@pytest.mark.parametrize("prefix", ["job-a", "job-z"])
def test_a_newer_run_frees_no_other_sinks_producers(pool: Pool, prefix: str) -> None:
    other = prepared(pool, Key(prefix, 1, ()))
    pool.acquire(KEY, {})
    assert other.did == []
    assert len(pool) == 1


def test_older_runs_are_freed_once(pool: Pool) -> None:
    old = prepared(pool, Key("job-u", 2, KEY.settings))
    pool.acquire(KEY, {})
    pool.acquire(KEY, {})
    assert old.did == ["destroy"]
    assert len(pool) == 0


@pytest.mark.parametrize("ahead", [1, -1])
@pytest.mark.parametrize("how", ["park", "release", "acquire", "clear"])
def test_a_forked_child_leaves_its_parents_producers_alone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, how: str, ahead: int
) -> None:
    parents, mine = prepared(pool), FakeProducer({}, "mine")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + ahead)
    if how == "acquire":
        assert pool.acquire(KEY, {"committed": {parents.transactional_id: 1}}) is not parents
    elif how == "clear":
        pool.clear()
    else:
        getattr(pool, how)(KEY, mine)
        assert pool.reclaim(mine)  # type: ignore[arg-type]
    assert parents.did == ["abandon"]
    again = prepared(pool)
    assert pool.acquire(KEY, {"committed": {again.transactional_id: 1}}) is again, "its own it keeps"


def test_a_process_that_needs_several_opens_them_side_by_side() -> None:
    FakeProducer.made = []
    together = threading.Barrier(3)

    def open_together(settings: Mapping[str, str], name: str) -> FakeProducer:
        if len(FakeProducer.made) > 1:
            together.wait(30)  # raises unless the third is opened beside two others
        return FakeProducer(settings, name)

    pool = Pool(open_together)  # type: ignore[arg-type]
    first, second = prepared(pool), prepared(pool)
    third = prepared(pool)
    opened = [first, second, third, *(kept_ahead(pool) for _ in range(2))]
    assert len({producer.transactional_id for producer in opened}) == len(FakeProducer.made) == 5
    pool.clear()
    assert [producer.did for producer in opened] == [["destroy"]] * 5


def kept_ahead(pool: Pool) -> FakeProducer:
    """One that was opened before it was needed."""
    for thread in pool._opening:
        thread.join()
    return prepared(pool)


def test_a_few_are_opened_ahead_and_none_for_tasks_that_run_at_once() -> None:
    FakeProducer.made = []
    pool = Pool(FakeProducer)  # type: ignore[arg-type]
    users = [pool.acquire(KEY, {}) for _ in range(40)]
    assert len(FakeProducer.made) == 40
    for user in users:
        user.begin()
        pool.park(KEY, user)
    pool.acquire(KEY, {})
    pool.clear()
    assert len(FakeProducer.made) == 41 + LIMIT // 8


def test_a_producer_that_cannot_be_opened_ahead_is_left_out() -> None:
    own = threading.current_thread()

    def refusing(settings: Mapping[str, str], name: str) -> FakeProducer:
        if threading.current_thread() is not own:
            raise OSError("no connection")
        return FakeProducer(settings, name)

    pool = Pool(refusing)  # type: ignore[arg-type]
    for _ in range(5):
        prepared(pool)
    pool.clear()
    assert len(pool) == 0


def test_those_that_are_still_being_opened_ahead_count() -> None:
    """A slow broker gets as many requests as there are producers parked, not as many again from every task."""
    FakeProducer.made = []
    own, answered = threading.current_thread(), threading.Event()

    def slow(settings: Mapping[str, str], name: str) -> FakeProducer:
        if threading.current_thread() is not own:
            answered.wait()
        return FakeProducer(settings, name)

    pool = Pool(slow)  # type: ignore[arg-type]
    for _ in range(3):
        prepared(pool)
    assert len(pool._opening) == 2, "for two that are parked"
    prepared(pool)
    assert len(pool._opening) == 3, "one more for the third"
    assert all(thread.daemon for thread in pool._opening), "a worker that ends does not wait for them"
    answered.set()
    pool.clear()
    assert len(FakeProducer.made) == 7
    assert {tuple(producer.settings.items()) for producer in FakeProducer.made} == {KEY.settings}
    for _ in range(3):
        prepared(pool)
    assert len(pool._opening) == 2, "those that have ended do not count"
    pool.clear()


def written(pool: Pool, *values: str) -> KafkaWriter:
    writer = KafkaWriter(WriterScope(SinkScope("job", "u", 3), 1, 0, 0, 0), KEY, "t", pool)
    writer.write(pa.record_batch({"value": pa.array(values, "string")}))
    return writer


@pytest.mark.parametrize("prepared", [False, True])
def test_a_producer_whose_task_gave_up_its_rows_is_not_used_again(pool: Pool, prepared: bool) -> None:
    """The broker has seen a transaction begin, and the driver does not know when: it could be taken for a later one."""
    writer = written(pool, "a")
    if prepared:
        assert writer.pre_commit()["after"] == -1
    writer.abort()
    writer.abort()
    assert FakeProducer.made[0].did == ["abort", "destroy"]
    assert len(pool) == 0


def test_a_producer_without_rows_is_free_again(pool: Pool) -> None:
    assert written(pool).pre_commit() == {"transactional_id": None}
    assert written(pool, "a").pre_commit()["sequence"] == 2
    assert [producer.did for producer in FakeProducer.made] == [["abort"]]


def test_a_writer_reports_when_its_producers_last_transaction_began(pool: Pool) -> None:
    payload = written(pool, "a").pre_commit()
    hints = {"committed": {payload["transactional_id"]: 1}, "started": {payload["transactional_id"]: 1000}}
    writer = KafkaWriter(WriterScope(SinkScope("job", "u", 3), 2, 0, 0, 0, hints), KEY, "t", pool)
    writer.write(pa.record_batch({"value": ["b"]}))
    assert writer.pre_commit() == {**payload, "sequence": 2, "after": 1000}
