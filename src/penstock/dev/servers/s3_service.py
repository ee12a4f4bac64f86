"""The development S3 server that stays: started by one command, used by many, stopped by another.

There is one per user cache. What is known of it is in `dev/s3/state.json`; what is true is asked of the process and the
port each time, so a server that died, or a machine that was switched off, is noticed and not believed.
"""

from __future__ import annotations

from pathlib import Path

from penstock.dev.servers.host import HOST, end_process
from penstock.dev.servers.kept import ServiceFolder, choose_port, is_process_with
from penstock.dev.servers.s3 import S3Server, answers_s3
from penstock.dev.servers.service import Status
from penstock.errors import DevelopmentError

DEFAULT_PORT = 8333
_HINT = "Its keys are in s3.json in its folder."
_FOLDER = ServiceFolder("s3")


def service_folder() -> Path:
    return _FOLDER.path


def status() -> Status:
    """What is running; never starts or stops anything."""
    started = _read()
    if started is None:
        return Status(False)
    pid, port = started
    if _is_ours(pid) and answers_s3(port):
        return Status(True, f"{HOST}:{port}", pid, str(service_folder()), _HINT)
    note = f"An S3 server was started as process {pid}, but it is gone."
    return Status(False, folder=str(service_folder()), note=note)


def up(port: int | None = None) -> Status:
    """Have it running, started now or before; its buckets from earlier runs are there.

    Without `port` it is 8333, or a free one where that is taken, which `note` then says. With `port` it is that one, or
    a `DevelopmentError`: where it is taken, and where the server already runs on another.
    """
    with _FOLDER.alone():
        now = status()
        if now.running:
            if port is not None and now.servers != f"{HOST}:{port}":
                raise DevelopmentError(
                    f"The development S3 server already runs on {now.servers}, not on port {port}.",
                    safe="It goes on as it is.",
                    to_do="Use that address, or run `penstock dev s3 down` first.",
                )
            return now
        _end()  # hung, or still starting for a caller that was killed: it holds the data
        chosen, note = choose_port(port, DEFAULT_PORT, "S3 server")
        pid = S3Server.start(service_folder(), port=chosen).detach()
        _FOLDER.write({"pid": pid, "port": chosen})
        return Status(True, f"{HOST}:{chosen}", pid, str(service_folder()), " ".join(filter(None, (note, _HINT))))


def down() -> Status:
    """Have none running; its buckets stay for the next `up`."""
    with _FOLDER.alone():
        before = status()
        _end()
        _FOLDER.forget()
        note = f"Stopped process {before.pid}." if before.running else "It was not running."
        return Status(False, folder=before.folder, note=note)


def _read() -> tuple[int, int] | None:
    try:
        state = _FOLDER.read()
        return int(state["pid"]), int(state["port"])
    except (ValueError, KeyError, TypeError):
        return None


def _end() -> None:
    started = _read()
    if started is not None and _is_ours(started[0]):
        end_process(started[0], S3Server.stop_seconds)


def _is_ours(pid: int) -> bool:
    return is_process_with(pid, service_folder() / "s3.json")
