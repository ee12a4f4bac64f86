"""The development S3 server that stays: started by one command, used by many, stopped by another.

There is one per user cache. What is known of it is in `dev/s3/state.json`; what is true is asked of the process and the
port each time, so a server that died, or a machine that was switched off, is noticed and not believed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.caches import user_cache
from penstock.dev.servers.base import Server
from penstock.dev.servers.host import HOST, end_process, free_port, is_alive, is_free
from penstock.dev.servers.s3 import S3Server, answers_s3
from penstock.dev.servers.service import Status
from penstock.errors import DevelopmentError
from penstock.processes import command_line
from penstock.storage.private import only_one

_STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of server. `mark` is a file in its folder whose path is in the command line of its process."""

    kind: str
    what: str
    port: int
    mark: str
    start: Callable[[Path, int], Server]
    answers: Callable[[int], bool]
    hint: str = ""

    @property
    def folder(self) -> Path:
        return user_cache() / "dev" / self.kind

    def status(self) -> Status:
        """What is running; never starts or stops anything."""
        state = self._read()
        if state is None:
            return Status(False)
        pid, port = state["pid"], state["port"]
        if self._is_ours(pid) and self.answers(port):
            return Status(True, f"{HOST}:{port}", pid, str(self.folder), self.hint)
        note = f"A {self.what} was started as process {pid}, but it is gone."
        return Status(False, folder=str(self.folder), note=note)

    def up(self, port: int | None = None) -> Status:
        """Have it running, started now or before; its data from earlier runs is there.

        Without `port` it is the usual one, or a free one where that is taken, which `note` then says. With `port` it is
        that one, or a `DevelopmentError`: where it is taken, and where the server already runs on another.
        """
        with self._alone():
            now = self.status()
            if now.running:
                if port is not None and now.servers != f"{HOST}:{port}":
                    raise DevelopmentError(
                        f"The development {self.what} already runs on {now.servers}, not on port {port}.",
                        safe="It goes on as it is.",
                        to_do=f"Use that address, or run `penstock dev {self.kind} down` first.",
                    )
                return now
            state = self._read()
            if state is not None:
                self._end(state["pid"])  # hung, or still starting for a caller that was killed: it holds the data
            chosen, note = self._choose(port)
            server = self.start(self.folder, chosen)
            pid = server.detach()
            self._write({"pid": pid, "port": chosen})
            return Status(True, f"{HOST}:{chosen}", pid, str(self.folder), " ".join(filter(None, (note, self.hint))))

    def down(self) -> Status:
        """Have none running; its data stays for the next `up`."""
        with self._alone():
            before = self.status()
            state = self._read()
            if state is not None:
                self._end(state["pid"])
                self._state_file.unlink(missing_ok=True)
            note = f"Stopped process {before.pid}." if before.running else "It was not running."
            return Status(False, folder=before.folder, note=note)

    def _choose(self, port: int | None) -> tuple[int, str]:
        wanted = self.port if port is None else port
        if is_free(wanted):
            return wanted, ""
        if port is not None:
            raise DevelopmentError(
                f"Port {port} is taken by another program.",
                safe="Nothing was started.",
                to_do="Stop that program, or leave --port out to get a free one.",
            )
        chosen = free_port()
        return chosen, f"Port {wanted} is taken by another program, so this {self.what} has {chosen}."

    def _end(self, pid: int) -> None:
        if self._is_ours(pid):
            end_process(pid, _STOP_SECONDS)

    def _is_ours(self, pid: int) -> bool:
        """Whether `pid` runs and, as far as this system tells, is our server: numbers are given out again."""
        if not is_alive(pid):
            return False
        command = command_line(pid)  # None: a living process is all this system tells
        return command is None or os.fsencode(self.folder / self.mark) in command

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_one(self.folder / "service.lock"):
            yield

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.json"

    def _read(self) -> dict[str, int] | None:
        try:
            state = json.loads(self._state_file.read_text(encoding="utf-8"))
            return {"pid": int(state["pid"]), "port": int(state["port"])}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # half-written or from elsewhere: as good as none, the next `up` writes it anew

    def _write(self, state: dict[str, int]) -> None:
        aside = self._state_file.with_suffix(".new")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(self._state_file)


S3 = Service(
    "s3",
    "S3 server",
    8333,
    "s3.json",
    lambda folder, port: S3Server.start(folder, port=port),
    answers_s3,
    hint="Its keys are in s3.json in its folder.",
)
