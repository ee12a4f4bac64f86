"""Several Redis servers that belong together: a primary and a replica with a sentinel, or the nodes of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from penstock.dev.kafka import HOST, free_port
from tests.support.servers.redis import RedisServer
from tests.support.waiting import until

NAME = "mymaster"
_SLOTS = 16384


class Sentinel(RedisServer):
    """One that watches, and alone decides, which is right for a test only."""

    name = "The Redis sentinel"

    def __init__(self, folder: Path, watched: RedisServer) -> None:
        super().__init__(folder, None, {})
        self._watched = watched

    @classmethod
    def watch(cls, folder: Path, server: RedisServer) -> Sentinel:
        return cls(folder, server)._begin()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def turn_to(self, server: RedisServer) -> None:
        """From now on that one is the primary; what was known before is forgotten."""
        self._end()
        self._watched = server
        self._prepare()
        self._launch()

    def primary(self) -> int:
        """The port of whom it takes for the primary."""
        with contextlib.closing(redis.Redis(HOST, self.port)) as client:
            found: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
            return int(found[1])

    def _prepare(self) -> None:
        self._config.write_text(
            f"bind {HOST}\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {NAME} {HOST} {self._watched.port} 1\n"
            f"sentinel down-after-milliseconds {NAME} 1500\nsentinel failover-timeout {NAME} 10000\n"
        )

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]


def connect(server: RedisServer) -> Any:
    return redis.Redis.from_url(server.url)


@contextlib.contextmanager
def watched_pair(folder: Path) -> Iterator[tuple[RedisServer, RedisServer, Sentinel]]:
    """A primary, a replica that has all of it, and a sentinel that knows both."""
    with RedisServer.start(folder / "primary") as primary:
        follow = {"replicaof": f"{HOST} {primary.port}"}
        with RedisServer.start(folder / "replica", settings=follow) as replica:
            until(lambda: connect(replica).info()["master_link_status"] == "up", "the replica to follow")
            with Sentinel.watch(folder / "sentinel", primary) as sentinel:
                with contextlib.closing(redis.Redis(HOST, sentinel.port)) as client:
                    until(
                        lambda: client.execute_command("SENTINEL", "REPLICAS", NAME),
                        "the sentinel to know the replica",
                    )
                yield primary, replica, sentinel


@contextlib.contextmanager
def cluster_of_three(folder: Path) -> Iterator[list[RedisServer]]:
    """Three nodes, a third of the slots each, without replicas."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            settings = {
                "cluster-enabled": "yes",
                "cluster-port": str(free_port()),
                "cluster-node-timeout": "2000",
                "cluster-require-full-coverage": "no",
            }
            nodes.append(stack.enter_context(RedisServer.start(folder / f"node-{number}", settings=settings)))
        bounds = [0, _SLOTS // 3, 2 * _SLOTS // 3, _SLOTS]
        for number, node in enumerate(nodes):
            connect(node).execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            # Numbers told apart, or all three would claim what the others have.
            connect(node).execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            bus = node.settings["cluster-port"]
            connect(nodes[0]).execute_command("CLUSTER", "MEET", HOST, node.port, bus)
        wait_whole(nodes)
        yield nodes


def wait_whole(nodes: list[RedisServer]) -> None:
    """Every node knows of all three that they serve their slots."""

    def whole() -> bool:
        infos = [connect(node).cluster("info") for node in nodes]
        return all(each["cluster_state"] == "ok" and each["cluster_slots_ok"] == str(_SLOTS) for each in infos)

    until(whole, "the cluster to be whole")


def holder(nodes: list[RedisServer], key: str) -> RedisServer:
    """The node that has the slot of `key`."""
    slot = connect(nodes[0]).cluster("keyslot", key)
    return nodes[min(2, next(n for n, end in enumerate((_SLOTS // 3, 2 * _SLOTS // 3, _SLOTS)) if int(slot) < end))]
