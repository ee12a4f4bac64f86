"""What the development servers that stay have in common: a folder in the user cache with what is known of them, a lock
so that one command at a time changes it, and a port.

What the file says is only what was started; whether it is true is asked of processes and ports each time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.caches import user_cache
from penstock.dev.servers.host import free_port, is_alive, is_free
from penstock.errors import DevelopmentError
from penstock.processes import command_line
from penstock.storage.private import only_one


@dataclass(frozen=True, slots=True)
class ServiceFolder:
    """Of one kind of server; there is one per user cache."""

    kind: str

    @property
    def path(self) -> Path:
        return user_cache() / "dev" / self.kind

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this lasts, no other command starts or stops it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_one(self.path / "service.lock"):
            yield

    def read(self) -> Any:
        """What was written last; None where that is nothing, half-written or from elsewhere: the next start writes it
        anew."""
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def write(self, state: Mapping[str, Any]) -> None:
        aside = self._file.with_suffix(".new")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(self._file)

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return self.path / "state.json"


def choose_port(port: int | None, usual: int, what: str) -> tuple[int, str]:
    """`port`, or a `DevelopmentError` where that is taken. Without one the usual, or a free one where that is taken,
    and a note for people that says so of `what`."""
    wanted = usual if port is None else port
    if is_free(wanted):
        return wanted, ""
    if port is not None:
        raise DevelopmentError(
            f"Port {port} is taken by another program.",
            safe="Nothing was started.",
            to_do="Stop that program, or leave --port out to get a free one.",
        )
    chosen = free_port()
    return chosen, f"Port {wanted} is taken by another program, so this {what} has {chosen}."


def is_process_with(pid: int, file: Path) -> bool:
    """Whether `pid` runs and, as far as this system tells, was started with `file`: a number is given out again."""
    if not is_alive(pid):
        return False
    command = command_line(pid)  # None: a living process is all this system tells
    return command is None or os.fsencode(file) in command
