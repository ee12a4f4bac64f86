"""The development broker that stays: started by one command, used by many, stopped by another. Or several brokers, as
one cluster.

There is one per user cache. What is known of it is in `dev/kafka/state.json`; what is true is asked of the processes
and ports each time, so a broker that died, or a machine that was switched off, is noticed and not believed. A cluster
has a folder of its own beside that of the single broker, so each finds its own topics again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.dev.servers.broker import Broker, answers_kafka
from penstock.dev.servers.cluster import Cluster
from penstock.dev.servers.host import HOST, end_process, free_port, is_free
from penstock.dev.servers.kept import ServiceFolder, choose_port, is_process_with
from penstock.errors import DevelopmentError

DEFAULT_PORT = 9092
_STOP_SECONDS = 15.0
_FOLDER = ServiceFolder("kafka")


@dataclass(frozen=True, slots=True)
class Status:
    """The development broker as it is now. `pid` is the first one's where there are several. `note` is for people: why
    a port differs, or that a broker had died."""

    running: bool
    servers: str | None = None
    pid: int | None = None
    folder: str | None = None
    note: str = ""
    brokers: int | None = None
    pids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Node:
    pid: int
    port: int
    folder: Path

    @property
    def is_ours(self) -> bool:
        return is_process_with(self.pid, self.folder / "server.properties")


def service_folder() -> Path:
    return _FOLDER.path


def status() -> Status:
    """What is running; never starts or stops anything. A cluster runs if all of its brokers do."""
    nodes = _read()
    if not nodes:
        return Status(False)
    gone = [node.pid for node in nodes if not (node.is_ours and answers_kafka(node.port))]
    if not gone:
        return _running(nodes)
    note = f"A broker was started as process {_listed(gone)}, but it is gone."
    if len(nodes) > 1:
        note = f"{len(nodes)} brokers were started, and {_listed(gone)} of their processes are gone."
    return Status(False, folder=str(service_folder()), note=note)


def up(port: int | None = None, brokers: int | None = None) -> Status:
    """Have a broker running, or so many as one cluster, started now or before; topics from earlier runs are there.

    Without `port` it is 9092, or a free one where that is taken, which `note` then says; further brokers have the
    numbers after it, or free ones. With `port` it is that one, or a `DevelopmentError`: where it is taken, and where
    the broker already runs on another, or as another number of brokers than asked for.
    """
    with _FOLDER.alone():
        now = status()
        if now.running:
            if port is not None and not f"{now.servers},".startswith(f"{HOST}:{port},"):
                raise DevelopmentError(
                    f"The development broker already runs on {now.servers}, not on port {port}.",
                    safe="It goes on as it is.",
                    to_do="Use that address, or run `penstock dev kafka down` first.",
                )
            if brokers is not None and brokers != now.brokers:
                raise DevelopmentError(
                    f"The development Kafka already runs with {now.brokers} brokers, not with {brokers}.",
                    safe="It goes on as it is.",
                    to_do="Use it so, or run `penstock dev kafka down` first.",
                )
            return now
        for node in _read():
            _end(node)  # hung, or still starting for a caller that was killed: it holds the data folder
        chosen, note = choose_port(port, DEFAULT_PORT, "broker")
        nodes = _start(chosen, brokers or 1)
        _write(nodes)
        return _running(nodes, note)


def down() -> Status:
    """Have no broker running; its topics stay for the next `up`."""
    with _FOLDER.alone():
        before = status()
        nodes = _read()
        with ThreadPoolExecutor(len(nodes) or 1) as threads:
            list(threads.map(_end, nodes))
        _FOLDER.forget()
        pids = before.pids or ()
        stopped = f"Stopped process{'es' if len(pids) > 1 else ''} {_listed(pids)}."
        return Status(False, folder=before.folder, note=stopped if before.running else "It was not running.")


def as_dict(status: Status) -> dict[str, object]:
    return asdict(status)


def _start(port: int, brokers: int) -> list[_Node]:
    if brokers == 1:
        broker = Broker.start(service_folder(), port=port)
        return [_Node(broker.detach(), port, broker.folder)]
    ports = [port, *(wanted if is_free(wanted) else free_port() for wanted in range(port + 1, port + brokers))]
    cluster = Cluster.start(_cluster_folder(brokers), brokers=brokers, ports=ports)
    pids = cluster.detach()
    return [_Node(pid, each.port, each.folder) for pid, each in zip(pids, cluster.brokers, strict=True)]


def _running(nodes: Sequence[_Node], note: str = "") -> Status:
    servers = ",".join(f"{HOST}:{node.port}" for node in nodes)
    pids = tuple(node.pid for node in nodes)
    folder = service_folder() if len(nodes) == 1 else _cluster_folder(len(nodes))
    return Status(True, servers, pids[0], str(folder), note, len(nodes), pids)


def _end(node: _Node) -> None:
    if node.is_ours:
        end_process(node.pid, _STOP_SECONDS)


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))


def _cluster_folder(brokers: int) -> Path:
    return service_folder() / f"cluster-of-{brokers}"


def _read() -> list[_Node]:
    """The brokers that were started last. Before there were clusters, one was written without its list."""
    try:
        state = _FOLDER.read()
        found = [(int(node["pid"]), int(node["port"])) for node in state.get("brokers", [state])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    if len(found) == 1:
        return [_Node(*found[0], service_folder())]
    folder = _cluster_folder(len(found))
    return [_Node(pid, port, folder / f"node-{number}") for number, (pid, port) in enumerate(found, 1)]


def _write(nodes: Sequence[_Node]) -> None:
    _FOLDER.write({"format": 2, "brokers": [{"pid": node.pid, "port": node.port} for node in nodes]})
