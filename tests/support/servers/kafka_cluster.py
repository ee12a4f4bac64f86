"""Several real Kafka brokers that are one cluster, on this machine only: what a single broker cannot show.

    with Cluster.start(folder) as cluster:
        producer = Producer({"bootstrap.servers": cluster.servers})
        cluster.brokers[0].kill()

Every topic that does not say otherwise has a replica on three brokers and takes rows as long as two of them are there;
so have Kafka's own logs of transactions and of groups. Each broker is a `Broker` with a folder and a port of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.dev.kafka import HOST, free_port, new_cluster_id
from tests.support.proxy import Cable
from tests.support.servers.broker import Broker
from tests.support.servers.server import Stoppable

_REPLICAS = 3
_IN_SYNC = 2
_ID = "cluster.id"


class Node(Broker):
    """A broker of a cluster: its own number, and the controllers by number and port."""

    def __init__(
        self, folder: Path, port: int, properties: Mapping[str, str], heap: str, node: int,
        controllers: Mapping[int, int], cluster_id: str,
    ) -> None:  # fmt: skip
        super().__init__(folder, port, properties, heap)
        self.node, self.controllers, self.cluster_id = node, controllers, cluster_id

    def _listeners(self) -> dict[str, int]:
        listeners = {"PLAINTEXT": self.port}
        if self.node in self.controllers:
            listeners["CONTROLLER"] = self.controllers[self.node]
        return listeners

    def _configuration(self) -> dict[str, str]:
        return {
            **super()._configuration(),
            "process.roles": "broker,controller" if self.node in self.controllers else "broker",
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(f"{node}@{HOST}:{port}" for node, port in self.controllers.items()),
        }


class CabledNode(Node):
    """Has a second listener, which clients reach over a `Cable` alone. The cable outlives restarts."""

    def __init__(
        self, folder: Path, port: int, properties: Mapping[str, str], heap: str, node: int,
        controllers: Mapping[int, int], cluster_id: str,
    ) -> None:  # fmt: skip
        super().__init__(folder, port, properties, heap, node, controllers, cluster_id)
        self._inner = free_port()
        self.cable = Cable(self._inner)

    @property
    def cabled_servers(self) -> str:
        return f"{HOST}:{self.cable.port}"

    def stop(self) -> None:
        self.cable.close()
        super().stop()

    def _listeners(self) -> dict[str, int]:
        return {**super()._listeners(), "CABLED": self._inner}

    def _configuration(self) -> dict[str, str]:
        found = super()._configuration()
        found["listener.security.protocol.map"] += ",CABLED:PLAINTEXT"
        found["advertised.listeners"] = f"PLAINTEXT://{self.servers},CABLED://{self.cabled_servers}"
        return found


class Cluster(Stoppable):
    """A started cluster. Its brokers are killed, paused and restarted one by one, or several at once by `restart`."""

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self.brokers = tuple(brokers)

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        brokers: int = 3,
        controllers: int | None = None,
        ports: Sequence[int] = (),
        properties: Mapping[str, str] | None = None,
        heap: str = "384m",
        kind: type[Node] = Node,
    ) -> Cluster:
        """Start `brokers` nodes whose whole life is in `folder`; data found there is used again.

        The first `controllers` of them, or all, also control the cluster, which stands still while not more than half
        of these are there. `properties` go over the defaults, `ports` are the brokers' own instead of free ones. Raises
        `DevelopmentError` when one does not come up; then none is left running.
        """
        numbers = range(1, brokers + 1)
        voters = {node: free_port() for node in numbers[: controllers or brokers]}
        name = _name(folder)
        given = {**replicated(brokers), **(properties or {})}
        wanted = ports or [free_port() for _ in numbers]
        made = cls(
            [
                kind(folder / f"node-{node}", port, given, heap, node, voters, name)
                for node, port in zip(numbers, wanted, strict=True)
            ]
        )
        made._together(lambda each: each._begin(), made.brokers)
        return made

    @property
    def servers(self) -> str:
        """Bootstrap servers: all of them, so that a client finds the cluster whichever is away."""
        return ",".join(broker.servers for broker in self.brokers)

    def broker(self, node: int) -> Broker:
        """The one that Kafka knows by this number."""
        return self.brokers[node - 1]

    def restart(self, brokers: Iterable[Broker] | None = None) -> None:
        """Start these again, or all, side by side: a cluster that has lost its controllers answers only when more than
        half of them are back, so none could be waited for alone."""
        self._together(lambda each: each.restart(), self.brokers if brokers is None else brokers)

    def stop(self) -> None:
        """End all, each cleanly if it can be."""
        self._each(lambda broker: broker.stop(), self.brokers)

    def _together(self, act: Callable[[Broker], object], brokers: Iterable[Broker]) -> None:
        """`act` on each at the same time; where one fails, all are ended."""
        try:
            self._each(act, brokers)
        except BaseException:
            with contextlib.suppress(Exception):
                self.stop()
            raise

    @staticmethod
    def _each(act: Callable[[Broker], object], brokers: Iterable[Broker]) -> None:
        chosen = list(brokers)
        with ThreadPoolExecutor(len(chosen) or 1, thread_name_prefix="penstock-cluster") as threads:
            list(threads.map(act, chosen))


def replicated(brokers: int) -> dict[str, str]:
    """Settings by which everything is on three brokers, or on all where they are fewer, and two must have a row."""
    replicas, in_sync = str(min(_REPLICAS, brokers)), str(min(_IN_SYNC, brokers))
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def _name(folder: Path) -> str:
    """The cluster's name, the same whenever it is started in this folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / _ID
    if not file.exists():
        file.write_text(new_cluster_id(), encoding="ascii")
    return file.read_text(encoding="ascii")
