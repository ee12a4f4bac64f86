"""The driver's side of a Kafka sink's lanes against a real broker: fences, marks, and whoever else is there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.contracts.lanes import Lane, Mark, Opening
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerCorrupt,
    MarksLost,
    PenstockError,
    Superseded,
    SystemUnavailable,
    TopicMissing,
)  # fmt: skip
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka import lanes as lanes_module
from penstock.sinks.kafka.lanes import KafkaLanes
from tests.support import kafka
from tests.support.proxy import END_TXN, Proxy
from tests.support.servers.broker import Broker
from tests.support.servers.security import SecureBroker, SecurityFiles
from tests.support.waiting import until

LANE = Lane("orders", 0)
QUERY = "11111111-1111-1111-1111-111111111111"


class Lab:
    """One query's lanes into one topic, in as many generations as a test wants."""

    def __init__(self, servers: str, **sink: Any) -> None:
        self.servers, self.uid = servers, uuid.uuid4().hex[:8]
        self.topic = kafka.create_topic(servers, 2, prefix="out")
        self.sink = KafkaSink(self.topic, servers=servers, **sink)
        self.marks = f"penstock.lab.{self.uid}.marks.orders"
        self._clients: list[KafkaLanes] = []

    def lanes(self, generation: int = 1, query: str = QUERY, sink: KafkaSink | None = None) -> KafkaLanes:
        made = (sink or self.sink).open_lanes(SinkScope("lab", self.uid, generation), query)
        self._clients.append(made)
        return made

    def opened(self, generation: int = 1, at: int = 0, query: str = QUERY) -> KafkaLanes:
        lanes = self.lanes(generation, query)
        lanes.prepare({"orders": 1})
        lanes.open(LANE, lambda found: Mark(query, generation, at))
        return lanes

    def task(self) -> ck.Producer:
        """A producer of the lane, as a task has one."""
        name = f"lab:{self.uid}:lane:orders:0"
        producer = ck.Producer({"bootstrap.servers": self.servers, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        return producer

    def send(self, producer: ck.Producer, value: bytes, record: bytes | None = None) -> None:
        """A row, and the mark behind it; both are at the broker when this returns."""
        producer.produce(self.topic, value, partition=0)
        if record is not None:
            producer.produce(self.marks, record, str(LANE).encode(), 0)
        assert producer.flush(30) == 0

    def rows(self) -> list[bytes]:
        return [row.value() for row in kafka.read_committed(self.servers, self.topic)]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def lab(broker: Broker) -> Iterator[Lab]:
    with closing(Lab(broker.servers)) as made:
        yield made


def mark(offset: int, generation: int = 1, query: str = QUERY, **more: int) -> Mark:
    return Mark(query, generation, offset, **more)


def refuse(error: PenstockError) -> Callable[[Mark | None], Mark]:
    def begin(found: Mark | None) -> Mark:
        raise error

    return begin


# Marks topics


def test_a_marks_topic_is_compacted_and_has_a_partition_for_each_of_the_source(lab: Lab) -> None:
    lanes = lab.lanes()
    ids = lanes.prepare({"orders": 3})
    described = lanes._describe([lab.marks])[lab.marks]
    assert ids == {"orders": str(described.topic_id)}
    assert len(described.partitions) == 3
    assert lanes._configs([lab.marks], "cleanup.policy") == {lab.marks: "compact"}
    assert lanes.prepare({"orders": 3}) == ids


def test_it_grows_with_its_source_and_keeps_its_marks(lab: Lab) -> None:
    lanes = lab.opened(at=7)
    ids = lanes.prepare({"orders": 1})
    assert lanes.prepare({"orders": 4}) == ids
    assert len(lanes._describe([lab.marks])[lab.marks].partitions) == 4
    added = Lane("orders", 3)
    lanes.open(added, lambda found: mark(0))
    assert lanes.marks() == {LANE: mark(7), added: mark(0)}


def test_a_broker_that_does_not_know_its_topics_yet_is_asked_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has just restarted may call a topic unknown that is there."""
    lanes = lab.lanes()
    first = lanes.prepare({"orders": 1})
    describe, asked = KafkaLanes._describe, list[Any]()

    def forgetful(self: KafkaLanes, names: Any) -> dict[str, Any]:
        asked.append(names)
        return {} if len(asked) < 4 else describe(self, names)

    monkeypatch.setattr(KafkaLanes, "_describe", forgetful)
    assert lanes.prepare({"orders": 1}) == first
    monkeypatch.setattr(KafkaLanes, "_describe", lambda *_: {})
    monkeypatch.setattr("penstock.kafka.connections.JOINING_SECONDS", 0.5)
    with pytest.raises(TopicMissing, match=lab.topic):
        lanes.prepare({"orders": 1})


def test_a_topic_of_that_name_that_is_not_compacted_is_refused(lab: Lab) -> None:
    kafka.create_topic(lab.servers, 1, name=lab.marks)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is 'delete'"):
        lab.lanes().prepare({"orders": 1})


def test_a_name_that_kafka_does_not_take_is_refused(lab: Lab) -> None:
    with pytest.raises(ConfigurationError, match="Kafka takes 249"):
        lab.lanes().prepare({"o" * 240: 1})


def test_a_marks_topic_that_was_made_again_has_another_id(lab: Lab) -> None:
    lanes = lab.lanes()
    first = lanes.prepare({"orders": 1})
    admin = AdminClient({"bootstrap.servers": lab.servers})
    admin.delete_topics([lab.marks])[lab.marks].result()
    until(lambda: lab.marks not in lanes._describe([lab.marks]), "the topic to be gone")
    assert lanes.prepare({"orders": 1}) != first


def test_a_user_without_rights_is_told_so(sasl_broker: SecureBroker, security: SecurityFiles) -> None:
    with closing(Lab(sasl_broker.servers)) as lab:
        admin = AdminClient({"bootstrap.servers": sasl_broker.servers})
        denied = AclBinding(
            ResourceType.TOPIC, f"penstock.lab.{lab.uid}.", ResourcePatternType.PREFIXED, "User:bob", "*",
            AclOperation.CREATE, AclPermissionType.DENY,
        )  # fmt: skip
        [asked] = admin.create_acls([denied]).values()
        asked.result()
        sink = KafkaSink(lab.topic, servers=sasl_broker.sasl_servers, options=security.client("bob"))
        lanes = lab.lanes(sink=sink)

        def refusal() -> AccessDenied | None:
            try:
                lanes.prepare({"orders": 1})
            except AccessDenied as error:
                return error
            admin.delete_topics([lab.marks])[lab.marks].result()  # the broker has not heard of the right yet
            return None

        assert "builder" not in str(until(refusal, "the broker to refuse", every=0.5))


def test_lanes_are_opened_over_a_secured_connection(sasl_broker: SecureBroker, security: SecurityFiles) -> None:
    with closing(Lab(sasl_broker.servers)) as lab:
        sink = KafkaSink(lab.topic, servers=sasl_broker.sasl_servers, options=security.client("alice"))
        opened = lab.lanes(sink=sink)
        opened.prepare({"orders": 1})
        assert opened.open(LANE, lambda found: mark(3)) == mark(3)
        assert opened.marks() == {LANE: mark(3)}


# Opening


def test_a_lane_begins_where_the_driver_says_and_the_mark_stays(lab: Lab) -> None:
    lanes, found = lab.lanes(), list[Mark | None]()
    lanes.prepare({"orders": 1})

    def begin(mark_found: Mark | None) -> Mark:
        found.append(mark_found)
        return mark(len(found) * 10, part=2, digest=99)

    assert lanes.open(LANE, begin) == mark(10, part=2, digest=99)
    assert lab.lanes().open(LANE, begin) == mark(20, part=2, digest=99)
    assert found == [None, mark(10, part=2, digest=99)]


def test_opening_fences_an_older_owner_and_aborts_its_open_slice(lab: Lab) -> None:
    lab.opened()
    task = lab.task()
    task.begin_transaction()
    lab.send(task, b"committed", mark(1).to_bytes())
    task.commit_transaction(30)
    task.begin_transaction()
    lab.send(task, b"lost", mark(2).to_bytes())
    found: list[Mark | None] = []

    def begin(newest: Mark | None) -> Mark:
        found.append(newest)
        return mark(1, 2)

    lab.lanes(2).open(LANE, begin)
    assert found == [mark(1)]
    with pytest.raises(ck.KafkaException) as refused:
        task.commit_transaction(30)
    assert refused.value.args[0].fatal()
    assert lab.rows() == [b"committed"]


def test_readers_behind_an_open_slice_go_on_once_the_lane_is_opened(lab: Lab) -> None:
    lab.opened()
    dead = lab.task()
    dead.begin_transaction()
    lab.send(dead, b"lost")
    bystander = ck.Producer({"bootstrap.servers": lab.servers})
    bystander.produce(lab.topic, b"behind", partition=0)
    bystander.flush(30)
    assert lab.rows() == []
    lab.lanes(2).open(LANE, lambda found: mark(0, 2))
    assert until(lab.rows, "the reader to go on") == [b"behind"]


def test_an_older_generation_stops_and_leaves_the_newer_ones_mark(lab: Lab) -> None:
    lab.opened(at=5)
    lab.opened(2, at=5)
    old = lab.lanes(1)
    with pytest.raises(Superseded):
        old.open(LANE, lambda found: mark(0))
    kafka.assert_nothing_open(lab.servers, f"lab:{lab.uid}:")
    assert lab.opened(2, at=5).marks() == {LANE: mark(5, 2)}


def test_marks_of_another_query_are_shown_to_the_driver_which_decides(lab: Lab) -> None:
    lab.opened(9, at=50, query="another")
    found: list[Mark | None] = []

    def begin(newest: Mark | None) -> Mark:
        found.append(newest)
        return mark(3)

    lab.lanes(1).open(LANE, begin)
    assert found == [Mark("another", 9, 50)]


def test_where_the_driver_refuses_nothing_is_committed_and_nothing_stays_open(lab: Lab) -> None:
    lab.opened(at=5)
    with pytest.raises(MarksLost):
        lab.lanes(2).open(LANE, refuse(MarksLost("lost", safe="", to_do="")))
    kafka.assert_nothing_open(lab.servers, f"lab:{lab.uid}:")
    assert lab.lanes(2).open(LANE, lambda found: found or mark(0)) == mark(5)


def test_the_newest_mark_is_found_however_much_is_behind_it(lab: Lab) -> None:
    lab.opened(at=5)
    task = lab.task()
    for _ in range(3):  # three hundred openings that were aborted, and no mark among them
        task.begin_transaction()
        for _ in range(100):
            task.produce(lab.marks, Opening(QUERY, 1).to_bytes(), str(LANE).encode(), 0)
        task.flush(30)
        task.abort_transaction(30)
    assert lab.lanes(2).open(LANE, lambda found: found or mark(0)) == mark(5)


def test_what_is_not_a_mark_stops_the_opening(lab: Lab) -> None:
    lab.opened(at=5)
    bystander = ck.Producer({"bootstrap.servers": lab.servers})
    bystander.produce(lab.marks, b"hello", b"me", 0)
    bystander.flush(30)
    with pytest.raises(LedgerCorrupt):
        lab.lanes(2).open(LANE, lambda found: mark(0, 2))


def test_many_lanes_are_opened_side_by_side(lab: Lab) -> None:
    lanes = lab.lanes()
    every = [Lane("orders", number) for number in range(20)]
    lanes.prepare({"orders": 20})
    opened = lanes.open_all(every, lambda lane, found: mark(lane.partition))
    assert opened == {lane: mark(lane.partition) for lane in every}
    assert lanes.marks() == opened


# Following


def test_marks_are_followed_and_aborted_ones_are_not_seen(lab: Lab) -> None:
    lanes = lab.opened()
    task = lab.task()
    assert lanes.marks() == {LANE: mark(0)}
    for offset in range(1, 6):
        task.begin_transaction()
        lab.send(task, b"row", mark(offset, rows=offset).to_bytes())
        task.commit_transaction(30)
        task.begin_transaction()
        lab.send(task, b"row", mark(100).to_bytes())
        task.abort_transaction(30)
        assert lanes.marks() == {LANE: mark(offset, rows=offset)}
    task.begin_transaction()
    lab.send(task, b"row", mark(100).to_bytes())
    assert lanes.marks() == {LANE: mark(5, rows=5)}


def test_without_lanes_there_are_no_marks(lab: Lab) -> None:
    assert lab.lanes().marks() == {}


# Lost answers


def test_a_commit_without_an_answer_is_resolved(broker: Broker) -> None:
    with Proxy(broker.servers) as proxy, closing(Lab(broker.servers)) as lab:
        lab.lanes().prepare({"orders": 1})
        late = lab.lanes(sink=KafkaSink(lab.topic, servers=proxy.servers))
        proxy.hold(END_TXN)
        assert late.open(LANE, lambda found: mark(3)) == mark(3)
        assert len(proxy.held) == 1
        # The request that got stuck is of an epoch that is over: it ends no transaction of a later owner.
        task = lab.task()
        task.begin_transaction()
        lab.send(task, b"row", mark(4).to_bytes())
        proxy.release()
        assert lab.rows() == []
        task.commit_transaction(30)
        assert lab.lanes(2).open(LANE, lambda found: found or mark(0)) == mark(4)


def test_no_broker_is_an_error_that_names_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_PATIENCE", 1.0)
    monkeypatch.setattr(lanes_module, "_SLICE", 0.2)
    nowhere = KafkaSink(lab.topic, servers="127.0.0.1:1")
    with pytest.raises(SystemUnavailable, match=r"127\.0\.0\.1:1"):
        lab.lanes(sink=nowhere).open(LANE, lambda found: mark(0))


def test_a_broker_that_is_killed_takes_no_mark_with_it(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "kafka") as own, closing(Lab(own.servers)) as lab:
        lanes = lab.opened()
        task = lab.task()
        task.begin_transaction()
        lab.send(task, b"row", mark(1).to_bytes())
        task.commit_transaction(30)
        task.begin_transaction()
        lab.send(task, b"lost", mark(2).to_bytes())
        own.kill()
        own.restart()
        opened = lab.lanes(2).open(LANE, lambda found: found or mark(0))
        assert opened == mark(1)
        assert lab.rows() == [b"row"]
        assert lanes.marks() == {LANE: mark(1)}


# Others who look at transactions


def test_sweeps_leave_lanes_alone(lab: Lab) -> None:
    """Also those of a sink whose name is the beginning of a lane's."""
    lab.opened()
    task = lab.task()
    task.begin_transaction()
    lab.send(task, b"row", mark(1).to_bytes())
    scope = SinkScope("lab", lab.uid, 9)
    with closing(lab.sink.open_committer(scope)) as committer:
        assert committer.leftovers(Deadline(20)) == []
        assert committer.abort_dangling([], Deadline(20)) == 0
    task.commit_transaction(30)
    assert lab.rows() == [b"row"]
