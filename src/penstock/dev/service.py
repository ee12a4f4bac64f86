"""`penstock dev kafka`: the development broker that keeps running, started by one command and stopped by another.

There is one per user cache. `dev/kafka/state.json` holds only what was started; processes and ports are asked each time
whether it is true, so a broker that died, or a machine that was switched off, is noticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.dev.broker import Broker, answers_kafka
from penstock.dev.server import HOST, end_process, free_port, is_alive, is_free
from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.processes import command_line
from penstock.storage.private import only_one

DEFAULT_PORT = 9092


@dataclass(frozen=True, slots=True)
class Status:
    """The development broker as it is now. `note` explains why a port differs, or that a broker had died."""

    running: bool
    servers: str | None = None
    pid: int | None = None
    folder: str | None = None
    note: str = ""


def service_folder() -> Path:
    return user_cache() / "dev" / "kafka"


def status() -> Status:
    """What is running; never starts or stops anything."""
    started = _read()
    if started is None:
        return Status(False)
    pid, port = started
    if _is_ours(pid) and answers_kafka(port):
        return _running(pid, port)
    note = f"A broker was started as process {pid}, but it is gone."
    return Status(False, folder=str(service_folder()), note=note)


def up(port: int | None = None) -> Status:
    """Start the broker unless it runs; topics from earlier runs are there. Without `port` it listens on 9092, or on a
    free port where that is taken, and `note` says so. With `port` it listens there or raises `DevelopmentError`: where
    the port is taken, and where the broker already runs on another."""
    with _alone():
        now = status()
        if now.running:
            if port is not None and now.servers != f"{HOST}:{port}":
                raise DevelopmentError(
                    f"The development broker already runs on {now.servers}, not on port {port}.",
                    safe="It keeps running as it is.",
                    to_do="Use that address, or run `penstock dev kafka down` first.",
                )
            return now
        _end()  # hung, or still starting for a caller that was killed: it holds the data folder
        chosen, note = _choose_port(port)
        pid = Broker.start(service_folder(), port=chosen).detach()
        _write(pid, chosen)
        return _running(pid, chosen, note)


def down() -> Status:
    """Stop the broker if it runs; its topics stay for the next `up`."""
    with _alone():
        before = status()
        _end()
        _state_file().unlink(missing_ok=True)
        note = f"Stopped process {before.pid}." if before.running else "It was not running."
        return Status(False, folder=before.folder, note=note)


def _running(pid: int, port: int, note: str = "") -> Status:
    return Status(True, f"{HOST}:{port}", pid, str(service_folder()), note)


@contextmanager
def _alone() -> Iterator[None]:
    """Keeps every other command from starting or stopping the broker."""
    service_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(service_folder() / "service.lock"):
        yield


def _choose_port(port: int | None) -> tuple[int, str]:
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


def _state_file() -> Path:
    return service_folder() / "state.json"


def _read() -> tuple[int, int] | None:
    """Process id and port of the broker that was started last; None where the file is missing, half-written or
    foreign: the next start replaces it."""
    try:
        state = json.loads(_state_file().read_text(encoding="utf-8"))
        return int(state["pid"]), int(state["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(pid: int, port: int) -> None:
    aside = _state_file().with_suffix(".new")
    aside.write_text(json.dumps({"pid": pid, "port": port}), encoding="utf-8")
    aside.replace(_state_file())


def _end() -> None:
    started = _read()
    if started is not None and _is_ours(started[0]):
        end_process(started[0], Broker.stop_seconds)


def _is_ours(pid: int) -> bool:
    """Whether `pid` runs and, as far as this system tells, was started in this folder: process ids are reused."""
    if not is_alive(pid):
        return False
    command = command_line(pid)  # None: this system tells only that the process lives
    return command is None or os.fsencode(service_folder() / "server.properties") in command
