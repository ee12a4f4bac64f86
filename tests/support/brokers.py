"""Who does what in a cluster just now, and the ways to take one away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient

from tests.support import kafka
from tests.support.servers.broker import Broker
from tests.support.servers.kafka_cluster import Cluster
from tests.support.waiting import until

_TRANSACTIONS = "__transaction_state"


class Roles:
    """A bystander's view of a cluster: which broker has a part to play."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 2})

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The broker that takes rows for a partition."""
        return self._cluster.broker(self._partitions(topic)[partition].leader)

    def coordinator(self, prefix: str) -> Broker:
        """The broker that keeps the transactions of some id with this prefix: an open one's, if there is one."""
        known = kafka.transactions(self._cluster.servers, prefix)
        name = min(known, key=lambda name: (known[name] != "Ongoing", name))
        number = abs(_java_hash(name)) % len(self._partitions(_TRANSACTIONS))
        return self.leader(_TRANSACTIONS, number)

    def controller(self) -> Broker:
        """The broker that leads the cluster's controllers; what metadata calls so is any of them."""
        with kafka._admin(self._cluster.servers) as admin:
            return self._cluster.broker(_leader_of(admin.describe_metadata_quorum()))

    def wait_whole(self, *topics: str, seconds: float = 120) -> None:
        """Return when every replica of these topics, and of the log of transactions, has all rows again."""

        def whole() -> bool:
            parts = [part for topic in (*topics, _TRANSACTIONS) for part in self._partitions(topic).values()]
            return all(len(part.isrs) == len(part.replicas) for part in parts)

        until(whole, "all replicas to be in sync", seconds, every=0.2)

    def _partitions(self, topic: str) -> dict[int, Any]:
        def led() -> dict[int, Any] | None:
            found = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
            return dict(found) if found and all(part.leader > 0 for part in found.values()) else None

        return until(led, f"every partition of {topic} to have a leader", every=0.1)


class Blow:
    """One fault: hits the broker that `choose` names when it begins, and takes it back from another thread."""

    def __init__(self, choose: Callable[[], Broker], kind: str, seconds: float = 6.0) -> None:
        self._choose, self._kind, self._seconds = choose, kind, seconds
        self._back = threading.Thread(target=self._take_back)
        self._hit: Broker | None = None

    def begin(self) -> None:
        self._hit = self._choose()
        if self._kind == "kill":
            self._hit.kill()
        else:
            self._hit.pause()
        self._back.start()

    def wait_over(self) -> None:
        self._back.join(120)
        assert self._hit is not None
        assert self._hit.running

    def _take_back(self) -> None:
        assert self._hit is not None
        if self._kind == "kill":
            self._hit.restart()
        else:
            time.sleep(self._seconds)  # longer than a broker may be silent before the others replace it
            self._hit.resume()


def _java_hash(text: str) -> int:
    """What Java makes of a string; a transaction's coordinator is chosen by it."""
    found = 0
    for letter in text:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def _leader_of(quorum: Any) -> int:
    topics = quorum["topics"] if isinstance(quorum, dict) else quorum.topics
    part = (topics[0]["partitions"] if isinstance(topics[0], dict) else topics[0].partitions)[0]
    return int(part["leader_id"] if isinstance(part, dict) else part.leader_id)
