"""The events of a job, for its listeners: a file of JSON lines, callbacks, the log.

Listeners never disturb the protocol: an error in one is logged, once, and the epoch goes on.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from penstock.secrets import masked

log = logging.getLogger("penstock")

FILE_VARIABLE = "PENSTOCK_EVENTS"  # path of a file to which every event is appended as one JSON line

Listener = Callable[[Mapping[str, Any]], None]


class Events:
    """Emits one job's events, from any thread."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._complained: set[int] = set()
        self._file: TextIO | None = None
        if path := os.environ.get(FILE_VARIABLE):
            # Open as long as the job runs. Errors may quote rows, so only its owner can read it.
            self._file = open(path, "a", buffering=1, encoding="utf-8", opener=_create_private)  # noqa: SIM115

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def emit(self, event: str, **fields: Any) -> None:
        # Errors quote other systems, whose messages may hold an address with its password.
        fields = {name: masked(value) if isinstance(value, str) else value for name, value in fields.items()}
        body = {"time": self._now(), "event": event, **fields}
        log.debug("%s %s", event, fields)
        with self._lock:
            if self._file is not None:
                try:
                    self._file.write(json.dumps(body, default=str) + "\n")
                except (OSError, ValueError) as error:
                    self._complain(self._file, error)
            for listener in self._listeners:
                try:
                    listener(body)
                except Exception as error:
                    self._complain(listener, error)

    def _complain(self, listener: object, error: Exception) -> None:
        if id(listener) not in self._complained:
            self._complained.add(id(listener))
            log.warning("an event listener failed and is reported once: %r", error)


def _create_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
