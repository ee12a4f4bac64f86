"""Kafka as a bystander sees it: feeds a topic, reads what is committed, lists transactions. Nothing of the product."""

from __future__ import annotations

import json
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import confluent_kafka as ck

from tests.support.verdicts import assert_none, copy_anomalies, total_anomalies
from tests.support.waiting import until

#: Neither open nor on its way to an end.
_ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: the `number`-th of its key, counted from 1."""

    id: int
    key: str
    number: int
    amount: int

    @property
    def value(self) -> str:
        return json.dumps({"id": self.id, "key": self.key, "number": self.number, "amount": self.amount})


def create_topic(
    servers: str,
    partitions: int = 1,
    *,
    prefix: str = "t",
    name: str | None = None,
    config: Mapping[str, str] | None = None,
    client: Mapping[str, str] | None = None,
) -> str:
    """A new topic with a name that nobody else has, unless `name` is given; `client` are settings to connect with."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = name or f"{prefix}-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers, **(client or {})})
    # As many replicas as the brokers say: one, or three in a cluster.
    topics = [NewTopic(name, partitions, config=dict(config or {}))]
    [created] = admin.create_topics(topics, request_timeout=30).values()
    created.result()
    return name


class Input:
    """A topic that is fed in portions, and the memory of all that was fed."""

    def __init__(self, servers: str, topic: str, keys: int = 20) -> None:
        self.topic, self.rows = topic, list[Row]()
        self.places: dict[int, tuple[int, int]] = {}  # id: partition and offset, of its first copy
        self._servers, self._keys, self._count = servers, keys, Counter[str]()

    def feed(self, rows: int = 100, *, again: int = 0) -> None:
        """Add `rows` rows, spread over all keys, behind the last `again` rows once more; return when the broker has
        them."""
        producer = ck.Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 1})
        for row in self.rows[-again:] if again else ():
            producer.produce(self.topic, key=row.key, value=row.value)
        for _ in range(rows):
            key = f"k{len(self.rows) % self._keys}"
            self._count[key] += 1
            row = Row(len(self.rows), key, self._count[key], (len(self.rows) * 7919) % 1000)
            self.rows.append(row)
            producer.produce(self.topic, key=row.key, value=row.value, on_delivery=partial(self._delivered, row.id))
        assert producer.flush(60) == 0, "the broker did not take the input"

    def _delivered(self, name: int, error: Any, message: Any) -> None:
        if error is None:
            self.places[name] = message.partition(), message.offset()

    def totals(self) -> dict[tuple[str, int], int]:
        """For each key and each n, the sum of its first n amounts."""
        sums: dict[str, int] = defaultdict(int)
        found = {}
        for row in self.rows:
            sums[row.key] += row.amount
            found[row.key, row.number] = sums[row.key]
        return found


def read_committed(servers: str, topic: str) -> list[Any]:
    """Every committed message, partition by partition in order, up to the first open transaction or the log's end."""
    reader = _consumer(servers)
    try:
        found = reader.list_topics(topic, 30).topics[topic].partitions
        rows: list[Any] = []
        for number in sorted(found):
            place = ck.TopicPartition(topic, number, 0)
            reader.assign([place])
            while True:
                message = reader.poll(30)
                assert message is not None, f"{topic}-{number} could not be read"
                if message.error() is None:
                    rows.append(message)
                elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                    break
                else:
                    assert message.error().retriable(), message.error()
        return rows
    finally:
        reader.close()


@dataclass
class Tail:
    """Follows a topic with read_committed, to know when something is there. Verdicts read anew."""

    servers: str
    topic: str
    values: list[dict[str, Any]] = field(default_factory=list)
    _reader: Any = None

    def read(self) -> list[dict[str, Any]]:
        if self._reader is None:
            self._reader = _consumer(self.servers)
            found = self._reader.list_topics(self.topic, 30).topics[self.topic].partitions
            self._reader.assign([ck.TopicPartition(self.topic, number, 0) for number in found])
        while messages := self._reader.consume(1000, 0.02):
            self.values += [json.loads(one.value()) for one in messages if one.error() is None]
        return self.values

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def assert_copied(source: Input, servers: str, topic: str, epochs: Mapping[int, int] | None = None) -> None:
    """The topic holds each input row exactly once, and each key's rows in their order. `epochs` has the epoch of
    each id, so that a torn one is named."""
    rows = [json.loads(message.value()) for message in read_committed(servers, topic)]
    assert_none(copy_anomalies(source.rows, rows, epochs), f"{len(source.rows)} rows sent, {len(rows)} visible")


def assert_counted(source: Input, servers: str, topic: str) -> None:
    """Each (key, n, total) is a true prefix of the input, none stands there twice, the last of each key is there."""
    rows = [json.loads(message.value()) for message in read_committed(servers, topic)]
    assert_none(total_anomalies(source.totals(), rows), f"{len(rows)} totals visible")


def transactions(servers: str, prefix: str) -> dict[str, str]:
    """The state of every transaction whose id begins with `prefix`; waits for a coordinator that is still loading."""
    listed: list[Any] = []

    def answered() -> bool:
        try:
            with _admin(servers) as admin:
                listed[:] = [one for group in admin.list_transactions().values() for one in group]
        except _library().errors.KafkaError as error:
            if not error.retriable:
                raise
            return False
        return True

    until(answered, "the broker to have loaded its transactions")
    return {one.transactional_id: str(one.state.value) for one in listed if one.transactional_id.startswith(prefix)}


def open_transactions(servers: str, prefix: str) -> list[str]:
    return sorted(name for name, state in transactions(servers, prefix).items() if state not in _ENDED)


def assert_nothing_open(servers: str, prefix: str) -> None:
    """No transaction under `prefix` is open. One that is just being ended gets the moment its markers take."""
    until(
        lambda: all(state == "Ongoing" or state in _ENDED for state in transactions(servers, prefix).values()),
        f"the transactions {prefix}* to be written to their ends",
        10,
    )
    assert open_transactions(servers, prefix) == []


def _consumer(servers: str, **more: Any) -> Any:
    return ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "reconnect.backoff.max.ms": 500,
            **more,
        }
    )


def _library() -> Any:
    with warnings.catch_warnings():
        # It reads its message schemas through a deprecated function of the standard library.
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
        import kafka.errors
    return kafka


@contextmanager
def _admin(servers: str) -> Iterator[Any]:
    admin = _library().KafkaAdminClient(bootstrap_servers=servers)
    try:
        yield admin
    finally:
        admin.close()


def complete(tail: Tail, source: Input) -> bool:
    """Whether as many rows are visible as were fed."""
    return len(tail.read()) >= len(source.rows)


def counted(tail: Tail, source: Input) -> bool:
    """Whether the newest count of every key is that of the input."""
    newest = {row["key"]: row["n"] for row in tail.read()}
    return sum(newest.values()) >= len(source.rows)


__all__: Sequence[str] = [
    "Input",
    "Row",
    "Tail",
    "assert_copied",
    "assert_counted",
    "assert_nothing_open",
    "complete",
    "counted",
    "open_transactions",
    "read_committed",
    "transactions",
]
