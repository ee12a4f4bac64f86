"""What a job's own functions do besides giving rows, noted in every process of a drilled job.

Python reports files that are opened, commands and requests to audit hooks. One is noted where a function of the
program, called by the engine or by a worker of Spark, does it itself: what a library does on import, what pytest or a
log does, and what Spark and Penstock do for the function is not its own. Each is noted once per process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FILE, PROGRAM = "PENSTOCK_DRILL_EFFECTS", "PENSTOCK_DRILL_PROGRAM"
WRITES, SENDS, CONNECTS = "writes", "sends", "connects"

_WRITING = os.O_WRONLY | os.O_RDWR
_CHANGES = {"os.remove": "removes", "os.rename": "renames", "os.mkdir": "makes", "os.truncate": "cuts"}
_OUTSIDE = {
    "socket.connect": "connects to",
    "subprocess.Popen": "runs",
    "os.system": "runs",
    "sqlite3.connect": "opens",
}
_DEVICES = "/dev/"
_REQUESTS = (b"POST ", b"PUT ", b"PATCH ", b"DELETE ")
_CALLERS = ("penstock.engine.", "pyspark.worker")
_OTHERS = ("penstock.", "pyspark.", "py4j.", "importlib", "tempfile", "logging")

#: What a drilled process loads at its start: Python imports this module by itself where its folder is on the path.
HOOK = "from penstock.drill.effects import install\ninstall()\n"


def install() -> None:
    file, program = os.environ.get(FILE), os.environ.get(PROGRAM)
    if file and program:
        sys.addaudithook(_Hook(Path(file), program))


class _Hook:
    def __init__(self, file: Path, program: str) -> None:
        self._file, self._program = file, program
        self._seen: set[tuple[str, ...]] = set()
        self._busy = threading.local()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (effect := effect_of(event, arguments)) is None or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            function = own_function(sys._getframe(1), self._program)
            key = (function or "", *effect)
            if function is not None and key not in self._seen:
                self._seen.add(key)
                line = json.dumps({"function": function, "kind": effect[0], "what": effect[1]}) + "\n"
                with open(self._file, "a", encoding="utf-8") as notes:
                    notes.write(line)
        finally:
            self._busy.now = False


def effect_of(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """The kind of effect, and what is done to what; None where it has none."""
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else _DEVICES
        return (WRITES, f"writes {path}") if flags & _WRITING and not path.startswith(_DEVICES) else None
    if event in _CHANGES:
        return WRITES, f"{_CHANGES[event]} {arguments[0]}"
    if event == "http.client.send":
        first = bytes(arguments[1][:8]) if isinstance(arguments[1], (bytes, bytearray)) else b""
        return (SENDS, f"sends a {first.split()[0].decode()} request") if first.startswith(_REQUESTS) else None
    return (CONNECTS, f"{_OUTSIDE[event]} {arguments[-1]}") if event in _OUTSIDE else None


def own_function(frame: FrameType | None, program: str) -> str | None:
    """The program's function that does it: the innermost one, if only libraries that act for it are further in, and the
    engine or a worker of Spark is further out."""
    function = None
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}."
        file = frame.f_code.co_filename
        if function is not None and module.startswith(_CALLERS):
            return function
        if function is None and file.startswith(program) and "site-packages" not in file:
            function = frame.f_code.co_qualname
        elif function is None and module.startswith(_OTHERS):
            return None
        frame = frame.f_back
    return None
