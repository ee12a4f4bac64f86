"""The development cluster that stays: a Spark master and workers, started by one command and stopped by another.

There is one per user cache. What is known of it is in `dev/spark/state.json`; what is true is asked of the processes
and of the master each time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock import processes
from penstock.dev.servers.host import HOST, end_process
from penstock.dev.servers.kept import ServiceFolder, choose_port
from penstock.dev.servers.spark import SparkCluster, ask_master
from penstock.errors import DevelopmentError

DEFAULT_PORT = 7077
_STOP_SECONDS = 15.0
_LEAVE_SECONDS = 10.0
_VERSION = 1
_FOLDER = ServiceFolder("spark")


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The development cluster as it is now. `workers` are those that the master has; `note` is for people."""

    running: bool
    master: str | None = None
    page: str | None = None
    workers: int = 0
    cores: int = 0
    executor_memory: str | None = None
    folder: str | None = None
    note: str = ""


def service_folder() -> Path:
    return _FOLDER.path


def status() -> ClusterStatus:
    """What is running; never starts or stops anything."""
    state = _read()
    if state is None:
        return ClusterStatus(False)
    folder = str(service_folder())
    answer = ask_master(state["page"]) if _is_ours(state["processes"][0]) else None
    if answer is None:
        return ClusterStatus(False, folder=folder, note="A cluster was started, but its master is gone.")
    alive = [worker for worker in answer["workers"] if worker["state"] == "ALIVE"]
    lost = state["workers"] - len(alive)
    return ClusterStatus(
        True,
        f"spark://{HOST}:{state['port']}",
        f"http://{HOST}:{state['page']}",
        len(alive),
        sum(worker["cores"] for worker in alive),
        state["memory"],
        folder,
        f"{lost} of {state['workers']} workers are gone." if lost > 0 else "",
    )


def up(*, workers: int = 2, cores: int = 1, memory: str = "1g", port: int | None = None) -> ClusterStatus:
    """Have a cluster running, started now or before. One that runs otherwise than it is asked for is a
    `DevelopmentError`: jobs may be using it."""
    with _FOLDER.alone():
        now, state = status(), _read()
        if now.running and state is not None:
            wanted = {"workers": workers, "cores": cores, "memory": memory, "port": port or state["port"]}
            if any(state[key] != value for key, value in wanted.items()):
                raise DevelopmentError(
                    f"The development cluster already runs, with {state['workers']} workers of {state['cores']} cores"
                    f" and {state['memory']} each, on port {state['port']}.",
                    safe="It goes on as it is.",
                    to_do="Use it so, or run `penstock dev spark down` first.",
                )
            return now
        _end_all(state)
        chosen, note = choose_port(port, DEFAULT_PORT, "master")
        cluster = SparkCluster.start(service_folder(), workers=workers, cores=cores, memory=memory, port=chosen)
        servers = (cluster.master, *cluster.workers)
        cluster.detach()
        _FOLDER.write(
            {
                "version": _VERSION,
                "port": chosen,
                "page": cluster.master.ui_port,
                "workers": workers,
                "cores": cores,
                "memory": memory,
                "processes": [[server.pid, processes.mark(server.pid)] for server in servers],
            }
        )
        found = status()
        return replace(found, note=f"{note} {found.note}".strip())


def down() -> ClusterStatus:
    """Have no cluster running. Jobs that use it lose their executors, and wait for a master."""
    with _FOLDER.alone():
        was_running, state = status().running, _read()
        _end_all(state)
        _FOLDER.forget()
        return ClusterStatus(False, folder=str(service_folder()), note="Stopped." if was_running else "It did not run.")


def as_dict(status: ClusterStatus) -> dict[str, object]:
    return asdict(status)


def _end_all(state: dict[str, Any] | None) -> None:
    """Workers before their master, each with the executors it has started."""
    for process in reversed(state["processes"] if state is not None else []):
        pid = process[0]
        if _is_ours(process):
            end_process(pid, _STOP_SECONDS)
            processes.end_session(pid, _LEAVE_SECONDS)


def _is_ours(process: list[Any]) -> bool:
    return processes.is_running(process[0], process[1])


def _read() -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = _FOLDER.read()
        return state if state["version"] == _VERSION else None
    except (KeyError, TypeError):
        return None
