"""The Kafka sink against a real broker, without Spark: what readers see, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import DataError, PreCommitFailed, SystemUnavailable, TopicMissing, ValueTooLarge
from penstock.kafka.connections import Connections
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.pool import POOL
from penstock.sinks.kafka.sink import create_topic
from penstock.sinks.kafka.transactions import TransactionClient
from tests.support.proxy import END_TXN, Proxy
from tests.support.servers.broker import Broker

if TYPE_CHECKING:
    from penstock.sinks.kafka.committer import KafkaCommitter

ck = pytest.importorskip("confluent_kafka")
pytest.importorskip("confluent_kafka.admin")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Lab:
    """One sink on one topic, with what tests do to it."""

    def __init__(self, servers: str, partitions: int = 4, **sink: Any) -> None:
        self.servers = servers
        self.topic = sink.pop("topic", f"t-{uuid.uuid4().hex[:8]}")
        self.scope = SinkScope("lab", uuid.uuid4().hex[:8], 1)
        self.sink = KafkaSink(self.topic, servers=servers, create_topic=True, partitions=partitions, **sink)
        self.committer: KafkaCommitter = self.sink.open_committer(self.scope)
        self.client = TransactionClient(Connections(servers, {}), transaction_timeout=60)

    def write(self, epoch: int, writer: int = 0, hints: Mapping[str, Any] | None = None, **columns: Any) -> Committable:
        scope = WriterScope(self.scope, epoch, 0, writer, 0, self.committer.hints() if hints is None else hints)
        opened = self.sink.open_writer(scope)
        batch = pa.record_batch(columns or {"value": [f"{epoch}-{writer}-{n}" for n in range(10)]})
        try:
            opened.write(batch)
            return Committable("lab", writer, len(batch), 0, opened.pre_commit())
        except BaseException:
            opened.abort()
            raise

    def seal(self, *committables: Committable) -> Sequence[Committable]:
        return self.committer.seal(committables, Deadline(10))

    def commit(self, epoch: int, *committables: Committable) -> set[Outcome]:
        return set(self.committer.commit(epoch, committables, Deadline(20)).values())

    def whole(self, epoch: int, writers: int = 1, **columns: Any) -> Sequence[Committable]:
        sealed = self.seal(*(self.write(epoch, writer, **columns) for writer in range(writers)))
        assert self.commit(epoch, *sealed) == {Outcome.COMMITTED}
        return sealed

    def successor(self) -> KafkaCommitter:
        return self.sink.open_committer(SinkScope(self.scope.job, self.scope.uid, 2))

    def state(self, committable: Committable) -> str:
        name = committable.payload["transactional_id"]
        return self.client.describe([name], Deadline(10))[name].state

    def read(self, count: int | None = None, topic: str | None = None) -> list[Any]:
        """What a read_committed reader sees, at once or as soon as there are `count`."""
        end = time.monotonic() + 60  # a broker that stood still first joins its cluster again
        while True:
            rows = visible(self.servers, topic or self.topic)
            if count is None or len(rows) >= count or time.monotonic() > end:
                return rows
            time.sleep(0.05)

    def values(self, count: int | None = None) -> list[bytes | None]:
        return sorted((row.value() for row in self.read(count)), key=lambda value: value or b"")

    def close(self) -> None:
        POOL.clear()
        self.committer.abort_dangling([], Deadline(20))
        assert self.client.list_open(self.scope.prefix, Deadline(10)) == []
        self.committer.close()
        self.client.close()


def visible(servers: str, topic: str) -> list[Any]:
    reader = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        found = reader.list_topics(topic, 10).topics[topic].partitions
        reader.assign([ck.TopicPartition(topic, number, 0) for number in found])
        rows, ended = list[Any](), set[Any]()
        while len(ended) < len(found):
            message = reader.poll(10)
            assert message is not None
            if message.error():
                assert message.error().code() == ck.KafkaError._PARTITION_EOF
                ended.add(message.partition())
            else:
                rows.append(message)
        return rows
    finally:
        reader.close()


@pytest.fixture
def lab(broker: Broker) -> Iterator[Lab]:
    made = Lab(broker.servers)
    yield made
    made.close()


def expected(*epochs: int, writers: int = 1) -> list[bytes]:
    return sorted(f"{e}-{w}-{n}".encode() for e in epochs for w in range(writers) for n in range(10))


def test_nothing_is_visible_before_the_commit(lab: Lab) -> None:
    sealed = lab.seal(*(lab.write(1, writer) for writer in range(3)))
    assert lab.read() == []
    assert lab.commit(1, *sealed) == {Outcome.COMMITTED}
    assert lab.values(30) == expected(1, writers=3)


def test_producers_serve_many_epochs(lab: Lab) -> None:
    names = set[str]()
    for epoch in range(20):
        names.update(c.payload["transactional_id"] for c in lab.whole(epoch, writers=2))
    assert len(names) == 2
    assert lab.values(400) == expected(*range(20), writers=2)


def test_committing_twice_changes_nothing(lab: Lab) -> None:
    sealed = lab.whole(1, writers=2)
    assert lab.commit(1, *sealed) == {Outcome.ALREADY_COMMITTED}
    after = lab.successor()
    assert set(after.commit(1, sealed, Deadline(10)).values()) == {Outcome.ALREADY_COMMITTED}
    after.close()
    assert lab.values(20) == expected(1, writers=2)


def test_a_killed_writers_rows_are_committed_from_here(lab: Lab) -> None:
    program = """
import json, os, signal, sys
import pyarrow as pa
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.sinks.kafka import KafkaSink
servers, topic, job, uid = sys.argv[1:]
writer = KafkaSink(topic, servers=servers).open_writer(WriterScope(SinkScope(job, uid, 1), 1, 0, 0, 0))
writer.write(pa.record_batch({"value": [f"1-0-{n}" for n in range(10)]}))
print(json.dumps(writer.pre_commit()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    arguments = [lab.servers, lab.topic, lab.scope.job, lab.scope.uid]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    sealed = lab.seal(Committable("lab", 0, 10, 0, json.loads(done.stdout)))
    assert lab.commit(1, *sealed) == {Outcome.COMMITTED}
    assert lab.values(10) == expected(1)


def test_the_loser_is_aborted_and_its_producer_goes_on(lab: Lab) -> None:
    winner, loser = lab.write(1, 0), lab.write(1, 0)
    sealed = lab.seal(winner)
    lab.committer.abort([loser], Deadline(10))
    assert lab.commit(1, *sealed) == {Outcome.COMMITTED}
    assert lab.state(loser) == "CompleteAbort"
    again = lab.write(2, 0), lab.write(2, 1)
    assert {c.payload["transactional_id"] for c in again} == {c.payload["transactional_id"] for c in (winner, loser)}
    assert lab.commit(2, *lab.seal(*again)) == {Outcome.COMMITTED}
    assert lab.values(30) == sorted(expected(1) + expected(2, writers=2))


def test_a_failed_task_aborts_and_the_next_one_goes_on(lab: Lab) -> None:
    writer = lab.sink.open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    writer.write(pa.record_batch({"value": ["never"]}))
    writer.abort()
    writer.abort()
    lab.whole(1)
    assert lab.values(10) == expected(1)


def test_aborting_after_the_preparation(lab: Lab) -> None:
    writer = lab.sink.open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    writer.write(pa.record_batch({"value": ["never"]}))
    prepared = Committable("lab", 0, 1, 0, writer.pre_commit())
    writer.abort()
    assert lab.state(prepared) == "CompleteAbort"
    with pytest.raises(PreCommitFailed, match="CompleteAbort"):
        lab.seal(prepared)


def test_a_decided_transaction_survives_its_workers_next_task(lab: Lab) -> None:
    first = lab.seal(lab.write(1))
    second = lab.seal(lab.write(2, hints={}))  # the worker has not heard how epoch 1 ended
    assert lab.commit(1, *first) == {Outcome.COMMITTED}
    assert lab.commit(2, *second) == {Outcome.COMMITTED}
    assert lab.values(20) == expected(1, 2)


def test_an_older_runs_prepared_transaction_survives_the_new_run_in_the_same_worker(lab: Lab) -> None:
    decided = lab.seal(lab.write(1))
    newer = WriterScope(SinkScope(lab.scope.job, lab.scope.uid, 2), 2, 0, 0, 0)
    writer = lab.sink.open_writer(newer)
    writer.abort()
    after = lab.successor()
    assert set(after.commit(1, decided, Deadline(10)).values()) == {Outcome.COMMITTED}
    after.close()
    assert lab.values(10) == expected(1)


def test_an_expired_transaction_is_lost(broker: Broker) -> None:
    lab = Lab(broker.servers, transaction_timeout="1s")
    sealed = lab.seal(lab.write(1, 0), lab.write(1, 1))
    until(lambda: {lab.state(c) for c in sealed} == {"CompleteAbort"})
    assert lab.commit(1, *sealed) == {Outcome.LOST}
    assert lab.read() == []
    lab.close()


def test_a_fenced_writer_can_do_nothing_more(lab: Lab) -> None:
    zombie = lab.sink.open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    zombie.write(pa.record_batch({"value": ["from the dead"]}))
    assert zombie._producer is not None
    zombie._producer.flush()
    after = lab.successor()
    assert after.abort_dangling([], Deadline(10)) == 1
    assert after.abort_dangling([], Deadline(10)) == 0
    zombie.write(pa.record_batch({"value": ["again"]}))
    with pytest.raises(PreCommitFailed):
        zombie.pre_commit()
    zombie.abort()
    after.close()
    lab.whole(2)
    assert lab.values(10) == expected(2)


def test_sweeping_keeps_what_is_decided_and_what_is_newer(lab: Lab) -> None:
    decided, left = lab.seal(lab.write(1, 0), lab.write(1, 1))
    newer = lab.sink.open_writer(WriterScope(SinkScope(lab.scope.job, lab.scope.uid, 9), 1, 0, 0, 0))
    newer.write(pa.record_batch({"value": ["newer"]}))
    prepared = Committable("lab", 2, 1, 0, newer.pre_commit())
    assert lab.committer.abort_dangling([decided], Deadline(10)) == 1
    assert (lab.state(decided), lab.state(left), lab.state(prepared)) == ("Ongoing", "CompleteAbort", "Ongoing")
    assert lab.commit(1, decided, left) == {Outcome.COMMITTED, Outcome.LOST}
    newest = lab.sink.open_committer(SinkScope(lab.scope.job, lab.scope.uid, 9))
    newest.abort([prepared], Deadline(10))
    newest.close()
    assert lab.values(10) == expected(1)


def test_initialised_again_by_somebody_is_unknown(lab: Lab) -> None:
    sealed = lab.seal(lab.write(1))
    name = sealed[0].payload["transactional_id"]
    foreign = ck.Producer({"bootstrap.servers": lab.servers, "transactional.id": name})
    foreign.init_transactions(20)
    assert lab.state(sealed[0]) == "Empty"
    assert lab.commit(1, *sealed) == {Outcome.UNKNOWN}


def test_an_id_the_broker_never_heard_of_is_unknown(lab: Lab) -> None:
    name = f"{lab.scope.prefix}-g000001-0123456789ab"
    payload = {"transactional_id": name, "sequence": 1, "producer_id": 1, "producer_epoch": 0, "started": 1}
    assert lab.commit(1, Committable("lab", 0, 1, 0, payload)) == {Outcome.UNKNOWN}


def test_what_stands_in_the_topics_is_told_to_a_person(lab: Lab) -> None:
    lab.whole(1)
    [sealed] = lab.seal(lab.write(2))  # by the same producer
    assert lab.committer.evidence([sealed], Deadline(20)) == {0: "of 10 rows 0 committed, 0 aborted, 10 without an end"}
    assert lab.commit(2, sealed) == {Outcome.COMMITTED}
    assert lab.committer.evidence([sealed], Deadline(20)) == {0: "of 10 rows 10 committed, 0 aborted, 0 without an end"}
    [swept] = lab.seal(lab.write(3))
    lab.committer.abort_dangling([], Deadline(20))
    assert lab.committer.evidence([swept], Deadline(20)) == {0: "of 10 rows 0 committed, 10 aborted, 0 without an end"}
    gone = swept.with_payload(topics=["never-was"])
    assert "not seen: topic never-was" in lab.committer.evidence([gone], Deadline(20))[0]


def test_nulls_and_empties_arrive_as_such(lab: Lab) -> None:
    lab.whole(1, value=pa.array([b"v", None, b"", "é".encode()]), key=pa.array([None, b"k", b"", b"x"]))
    assert sorted(map(str, ((row.key(), row.value()) for row in lab.read(4)))) == sorted(
        map(str, [(None, b"v"), (b"k", None), (b"", b""), (b"x", "é".encode())])
    )


def test_large_types_and_slices(lab: Lab) -> None:
    value = pa.array([f"s{n}" for n in range(100)], pa.large_string()).slice(40, 20)
    lab.whole(1, value=value)
    assert lab.values(20) == sorted(f"s{n}".encode() for n in range(40, 60))


def test_headers_and_timestamps_are_read_back(lab: Lab) -> None:
    headers = pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, []], HEADERS)
    moments = pa.array([1_700_000_000_123_456, 1_700_000_001_000_000, None], pa.timestamp("us", "UTC"))
    lab.whole(1, value=["x", "y", "z"], headers=headers, timestamp=moments)
    rows = {row.value(): row for row in lab.read(3)}
    assert rows[b"x"].headers() == [("a", b"1"), ("a", None)]
    assert rows[b"x"].timestamp()[1] == 1_700_000_000_123
    assert rows[b"y"].headers() is None
    assert rows[b"y"].timestamp()[1] == 1_700_000_001_000
    assert abs(rows[b"z"].timestamp()[1] / 1000 - time.time()) < 60


def test_the_partition_column_is_obeyed(lab: Lab) -> None:
    wanted = [3, 0, 1, 2, 3, None]
    lab.whole(1, value=[str(n) for n in range(6)], partition=pa.array(wanted, pa.int32()))
    found = {int(row.value()): row.partition() for row in lab.read(6)}
    assert [found[n] for n in range(5)] == wanted[:5]


@pytest.mark.parametrize("number", [4, 99, -2])
def test_a_partition_that_does_not_exist(lab: Lab, number: int) -> None:
    with pytest.raises(DataError, match=f"partition {number}"):
        lab.write(1, value=["x", "y"], partition=pa.array([0, number], pa.int32()))
    assert lab.read() == []


def test_partitions_that_are_added_while_a_producer_is_kept_are_written_to(lab: Lab) -> None:
    lab.whole(1, value=["x"], partition=pa.array([0], pa.int32()))
    admin = ck.admin.AdminClient({"bootstrap.servers": lab.servers})
    for future in admin.create_partitions([ck.admin.NewPartitions(lab.topic, 5)]).values():
        future.result(30)
    until(lambda: len(admin.list_topics(lab.topic, 10).topics[lab.topic].partitions) == 5)
    lab.whole(2, value=["y"], partition=pa.array([4], pa.int32()))
    assert sorted((row.value(), row.partition()) for row in lab.read(2)) == [(b"x", 0), (b"y", 4)]


OLD = pa.array([1_000_000_000_000_000] * 3, pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("config", "columns", "says"),
    [
        ({"cleanup.policy": "compact"}, {"key": ["a", None, "c"]}, "never takes such rows"),
        (
            {"message.timestamp.before.max.ms": "1000"},
            {"timestamp": OLD},
            "never",
        ),
        ({}, {"timestamp": pa.array([0, 1, 2], pa.timestamp("us", "UTC"))}, "1970"),
    ],
)
def test_rows_that_a_topic_never_takes_are_no_reason_to_try_again(
    broker: Broker, topic: Callable[..., str], config: dict[str, str], columns: dict[str, Any], says: str
) -> None:
    laboratory = Lab(broker.servers, topic=topic(config=config))
    try:
        with pytest.raises(DataError, match=says) as refused:
            laboratory.write(1, value=["x", "y", "z"], **columns)
        assert not refused.value.retryable
        assert laboratory.read() == []
    finally:
        laboratory.close()


def test_a_topic_column_that_names_what_no_topic_can_be_called(lab: Lab) -> None:
    free = KafkaSink(servers=lab.servers).open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    with pytest.raises(DataError, match="'no such name'"):
        free.write(pa.record_batch({"value": ["x"], "topic": ["no such name"]}))
    free.abort()


def test_the_topic_column_and_order_within_a_partition(lab: Lab) -> None:
    topics = [f"{lab.topic}-{letter}" for letter in "ab"]
    connections = Connections(lab.servers, {})
    for topic in topics:
        create_topic(connections, topic, 1, 1)
    connections.close()
    free = KafkaSink(servers=lab.servers)
    writer = free.open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    writer.write(pa.record_batch({"value": [str(n) for n in range(100)], "topic": topics * 50}))
    sealed = lab.seal(Committable("lab", 0, 100, 0, writer.pre_commit()))
    assert sealed[0].payload["topics"] == topics
    assert lab.commit(1, *sealed) == {Outcome.COMMITTED}
    for start, topic in enumerate(topics):
        assert [int(row.value()) for row in lab.read(50, topic)] == list(range(start, 100, 2))


def test_keys_land_where_javas_clients_put_them(lab: Lab) -> None:
    # The hash itself against values published with Kafka's own client.
    assert murmur2(b"21") == -973932308
    assert murmur2(b"foobar") == -790332482
    assert murmur2(b"a-little-bit-long-string") == -985981536
    keys = [f"key-{n}".encode() for n in range(200)] + [b"21", b"foobar", b"a-little-bit-long-string"]
    lab.whole(1, value=keys, key=keys)
    for row in lab.read(len(keys)):
        assert row.partition() == (murmur2(row.key()) & 0x7FFFFFFF) % 4


def test_five_megabytes_where_the_topic_takes_them(lab: Lab) -> None:
    configure(lab, {"max.message.bytes": "8000000"})
    lab.whole(1, value=[b"x" * 5_000_000])
    assert [len(value or b"") for value in lab.values(1)] == [5_000_000]


def test_larger_than_the_topic_takes(lab: Lab) -> None:
    with pytest.raises(ValueTooLarge, match=r"5,000,00\d bytes"):
        lab.write(1, value=[b"x" * 5_000_000])
    lab.whole(2)
    assert lab.values(10) == expected(2)


def test_larger_than_the_client_takes(broker: Broker) -> None:
    lab = Lab(broker.servers, options={"message.max.bytes": "100000"})
    with pytest.raises(ValueTooLarge, match="100,000"):
        lab.write(1, value=[b"small", b"x" * 200_000])
    lab.whole(2)
    assert lab.values(10) == expected(2)
    lab.close()


def test_a_full_queue_is_waited_out(broker: Broker) -> None:
    lab = Lab(broker.servers, options={"queue.buffering.max.messages": "100"})
    lab.whole(1, value=[str(n) for n in range(5000)])
    headers = pa.array([[{"key": "n", "value": b"1"}]] * 2000, HEADERS)
    lab.whole(2, value=[str(n) for n in range(5000, 7000)], headers=headers)
    assert sorted(int(value or b"") for value in lab.values(7000)) == list(range(7000))
    lab.close()


def test_a_topic_that_is_not_there(broker: Broker) -> None:
    sink = KafkaSink("no-such-topic", servers=broker.servers)
    with pytest.raises(TopicMissing, match="no-such-topic"):
        sink.check(CheckContext("j", 1, 60), "u")
    writer = sink.open_writer(WriterScope(SinkScope("j", uuid.uuid4().hex, 1), 1, 0, 0, 0))
    with pytest.raises(TopicMissing):
        writer.write(pa.record_batch({"value": ["x"]}))
    writer.abort()


def test_a_broker_that_is_not_there() -> None:
    sink = KafkaSink("t", servers="127.0.0.1:1")
    with pytest.raises(SystemUnavailable, match=r"127\.0\.0\.1:1"):
        sink.check(CheckContext("j", 1, 60), "u")
    committer = sink.open_committer(SinkScope("j", "u", 1))
    sealed = Committable(
        "u",
        0,
        1,
        0,
        {
            "transactional_id": "j-u-g000001-0123456789ab",
            "sequence": 1,
            "producer_id": 1,
            "producer_epoch": 0,
            "started": 1,
        },
    )
    assert committer.commit(1, [sealed], Deadline(2)) == {0: Outcome.UNKNOWN}
    with pytest.raises(SystemUnavailable):
        committer.abort_dangling([], Deadline(2))
    committer.close()


def test_checks_name_numbers(lab: Lab) -> None:
    from penstock.errors import TimeoutsContradict

    assert "replication factor 1" in lab.sink.check(CheckContext("j", 1, 60), "u")[0].message
    with pytest.raises(TimeoutsContradict, match=r"900 s.*901 s"):
        lab.sink.check(CheckContext("j", 1, 900), "u")
    long = KafkaSink(lab.topic, servers=lab.servers, transaction_timeout="1h")
    with pytest.raises(TimeoutsContradict, match=r"3600 s.*900 s"):
        long.check(CheckContext("j", 1, 60), "u")


def test_a_batch_without_rows_costs_nothing(lab: Lab) -> None:
    writer = lab.sink.open_writer(WriterScope(lab.scope, 1, 0, 0, 0))
    writer.write(pa.record_batch({"value": pa.array([], pa.binary())}))
    sealed = lab.seal(Committable("lab", 0, 0, 0, writer.pre_commit()))
    assert lab.commit(1, *sealed) == {Outcome.COMMITTED}


def test_a_forked_child_opens_its_own(lab: Lab) -> None:
    lab.whole(1)
    child = os.fork()
    if child == 0:
        try:
            lab.sink.open_writer(WriterScope(lab.scope, 2, 0, 0, 0)).abort()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    lab.whole(2)
    assert lab.values(20) == expected(1, 2)


@pytest.fixture
def slow_road(lab: Lab) -> Iterator[Proxy]:
    """What the lab's writers say to the broker goes this way; the driver's requests do not."""
    with Proxy(lab.servers) as proxy:
        lab.sink = KafkaSink(lab.topic, servers=proxy.servers)
        yield proxy


def test_a_delayed_commit_of_a_producers_own_ends_no_later_transaction(lab: Lab, slow_road: Proxy) -> None:
    [first] = lab.whole(1)
    slow_road.hold(END_TXN)
    later = lab.seal(lab.write(2))[0]  # its worker catches up with epoch 1's commit first, and is heard the second time
    assert len(slow_road.held) == 1
    slow_road.release()
    assert lab.state(later) == "Ongoing"
    assert lab.values() == expected(1)
    assert later.payload["transactional_id"] != first.payload["transactional_id"]
    assert lab.commit(2, later) == {Outcome.COMMITTED}
    assert lab.values(20) == expected(1, 2)


def test_a_delayed_abort_of_a_producers_own_ends_no_later_transaction(lab: Lab, slow_road: Proxy) -> None:
    opened = lab.sink.open_writer(WriterScope(lab.scope, 1, 0, 0, 0, {}))
    opened.write(pa.record_batch({"value": ["given up"]}))
    opened.pre_commit()
    slow_road.hold(END_TXN)
    opened.abort()
    later = lab.seal(lab.write(1))[0]
    assert len(slow_road.held) == 1
    slow_road.release()
    assert lab.commit(1, later) == {Outcome.COMMITTED}
    assert lab.values(10) == expected(1)


def test_a_delayed_commit_of_the_drivers_ends_no_later_transaction(lab: Lab) -> None:
    with Proxy(lab.servers) as proxy:
        road = KafkaSink(lab.topic, servers=proxy.servers).open_committer(lab.scope)
        try:
            sealed = road.seal([lab.write(1)], Deadline(10))
            proxy.hold(END_TXN)
            assert road.commit(1, sealed, Deadline(20)) == {0: Outcome.COMMITTED}
            later = lab.seal(lab.write(2))[0]  # with the hints of another committer than the one that is unsure
            assert len(proxy.held) == 1
            proxy.release()
            assert lab.state(later) == "Ongoing"
            assert lab.values() == expected(1)
        finally:
            road.close()


def test_a_broker_that_restarts_between_preparation_and_commit(own_broker: Broker) -> None:
    lab = Lab(own_broker.servers)
    lab.whole(1)
    sealed = lab.seal(lab.write(2, 0), lab.write(2, 1))
    own_broker.restart()
    assert lab.commit(2, *sealed) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    lab.whole(3)
    assert lab.values(40) == sorted(expected(1) + expected(2, writers=2) + expected(3))
    lab.close()


def test_a_broker_that_hangs_is_unknown_and_then_committed(own_broker: Broker) -> None:
    lab = Lab(own_broker.servers)
    sealed = lab.seal(lab.write(1))
    own_broker.pause()
    try:
        outcome = lab.committer.commit(1, sealed, Deadline(2))
    finally:
        own_broker.resume()
    assert outcome == {0: Outcome.UNKNOWN}
    assert lab.commit(1, *sealed) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert lab.committer.hints()["committed"] == {}
    again = lab.whole(2)
    assert again[0].payload["transactional_id"] != sealed[0].payload["transactional_id"]
    assert lab.values(20) == expected(1, 2)
    lab.close()


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that a test may stop and pause."""
    with Broker.start(tmp_path_factory.mktemp("kafka"), heap="512m") as started:
        yield started


def configure(lab: Lab, settings: Mapping[str, str]) -> None:
    admin = ck.admin.AdminClient({"bootstrap.servers": lab.servers})
    resource = ck.admin.ConfigResource(ck.admin.ResourceType.TOPIC, lab.topic)
    for name, value in settings.items():
        resource.add_incremental_config(
            ck.admin.ConfigEntry(name, value, incremental_operation=ck.admin.AlterConfigOpType.SET)
        )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def murmur2(data: bytes) -> int:
    """Java's hash of a key, from its definition: 32-bit Murmur 2 with a fixed seed."""
    mask, mixer = 0xFFFFFFFF, 0x5BD1E995
    state = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = (int.from_bytes(data[start : start + 4], "little") * mixer) & mask
        word = ((word ^ (word >> 24)) * mixer) & mask
        state = ((state * mixer) & mask) ^ word
    if data[whole:]:
        state = ((state ^ int.from_bytes(data[whole:], "little")) * mixer) & mask
    state = ((state ^ (state >> 13)) * mixer) & mask
    state ^= state >> 15
    return state - (1 << 32) if state >> 31 else state
