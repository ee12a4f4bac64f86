"""The development broker that stays: started by one command, used by many, stopped by another.

There is one per user cache. What is known of it is in `dev/kafka/state.json`; what is true is asked of the process and
the port each time, so a broker that died, or a machine that was switched off, is noticed and not believed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.caches import user_cache
from penstock.dev.servers.broker import Broker, answers_kafka
from penstock.dev.servers.host import HOST, end_process, free_port, is_alive, is_free
from penstock.errors import DevelopmentError
from penstock.processes import command_line
from penstock.storage.private import only_one

DEFAULT_PORT = 9092
_STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Status:
    """The development broker as it is now. `note` is for people: why a port differs, or that a broker had died."""

    running: bool
    servers: str | None = None
    pid: int | None = None
    folder: str | None = None
    note: str = ""


def service_folder() -> Path:
    return user_cache() / "dev" / "kafka"


def status() -> Status:
    """What is running; never starts or stops anything."""
    state = _read()
    if state is None:
        return Status(False)
    pid, port = int(state["pid"]), int(state["port"])
    if _is_ours(pid) and answers_kafka(port):
        return Status(True, f"{HOST}:{port}", pid, str(service_folder()))
    return Status(False, folder=str(service_folder()), note=f"A broker was started as process {pid}, but it is gone.")


def up(port: int | None = None) -> Status:
    """Have a broker running, started now or before; its topics from earlier runs are there.

    Without `port` it is 9092, or a free one where that is taken, which `note` then says. With `port` it is that one, or
    a `DevelopmentError`: where it is taken, and where the broker already runs on another.
    """
    with _alone():
        now = status()
        if now.running:
            if port is not None and now.servers != f"{HOST}:{port}":
                raise DevelopmentError(
                    f"The development broker already runs on {now.servers}, not on port {port}.",
                    safe="It goes on as it is.",
                    to_do="Use that address, or run `penstock dev kafka down` first.",
                )
            return now
        state = _read()
        if state is not None:
            _end(int(state["pid"]))  # hung, or still starting for a caller that was killed: it holds the data folder
        chosen, note = _choose(port)
        broker = Broker.start(service_folder(), port=chosen)
        pid = broker.detach()
        _write({"pid": pid, "port": chosen})
        return Status(True, broker.servers, pid, str(service_folder()), note)


def down() -> Status:
    """Have no broker running; its topics stay for the next `up`."""
    with _alone():
        before = status()
        state = _read()
        if state is not None:
            _end(int(state["pid"]))
            _state_file().unlink(missing_ok=True)
        note = f"Stopped process {before.pid}." if before.running else "It was not running."
        return Status(False, folder=before.folder, note=note)


def as_dict(status: Status) -> dict[str, object]:
    return asdict(status)


def _choose(port: int | None) -> tuple[int, str]:
    wanted = DEFAULT_PORT if port is None else port
    if is_free(wanted):
        return wanted, ""
    if port is not None:
        raise DevelopmentError(
            f"Port {port} is taken by another program.",
            safe="Nothing was started.",
            to_do="Stop that program, or leave --port out to get a free one.",
        )
    chosen = free_port()
    return chosen, f"Port {wanted} is taken by another program, so this broker has {chosen}."


def _end(pid: int) -> None:
    if _is_ours(pid):
        end_process(pid, _STOP_SECONDS)


def _is_ours(pid: int) -> bool:
    """Whether `pid` runs and, as far as this system tells, is our broker: numbers are given out again after a while."""
    if not is_alive(pid):
        return False
    command = command_line(pid)  # None: a living process is all this system tells
    return command is None or os.fsencode(service_folder() / "server.properties") in command


@contextmanager
def _alone() -> Iterator[None]:
    service_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(service_folder() / "service.lock"):
        yield


def _state_file() -> Path:
    return service_folder() / "state.json"


def _read() -> dict[str, int] | None:
    try:
        state = json.loads(_state_file().read_text(encoding="utf-8"))
        return {"pid": int(state["pid"]), "port": int(state["port"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # half-written or from elsewhere: as good as none, the next `up` writes it anew


def _write(state: dict[str, int]) -> None:
    aside = _state_file().with_suffix(".new")
    aside.write_text(json.dumps(state), encoding="utf-8")
    aside.replace(_state_file())
