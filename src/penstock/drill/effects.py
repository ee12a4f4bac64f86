"""What a job's own functions do besides giving rows, noted in every process of a drilled job by Python's audit hooks.

What imports, logs and temporary files do, and what Spark and Penstock do for a function, is not its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

CHANGES, CONNECTS = "changes", "connects"  # something outside; to something of which it is not known

_EVENTS = {
    "os.remove": (CHANGES, "removes"), "os.rename": (CHANGES, "renames"), "os.mkdir": (CHANGES, "makes"),
    "os.system": (CONNECTS, "runs"), "subprocess.Popen": (CONNECTS, "runs"), "socket.connect": (CONNECTS, "calls"),
}  # fmt: skip
_WRITING, _DEVICES = os.O_WRONLY | os.O_RDWR, "/dev/"
_REQUESTS = (b"POST ", b"PUT ", b"PATCH ", b"DELETE ")
_CALLERS = ("penstock.engine.", "pyspark.worker")
_OTHERS = ("penstock.", "pyspark.", "py4j.", "importlib", "tempfile", "logging")


def hook_into(folder: Path, file: Path, program: Path) -> str:
    """What is to be on a process's path: Python imports a module `sitecustomize` from there by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    call = f"install({str(file)!r}, {str(program.parent) + os.sep!r})"
    (folder / "sitecustomize.py").write_text(f"from penstock.drill.effects import install\n\n{call}\n", "utf-8")
    return str(folder)


def install(file: str, program: str) -> None:
    """Note in `file` what functions do whose code is in the folder `program`."""
    seen, busy = set[str](), threading.local()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if (effect := effect_of(event, arguments)) is None or getattr(busy, "now", False):
            return
        busy.now = True  # what follows opens a file, too
        try:
            function = own_function(sys._getframe(1), program)
            line = json.dumps({"function": function, "kind": effect[0], "what": effect[1]}) + "\n"
            if function is not None and line not in seen:
                seen.add(line)
                with open(file, "a", encoding="utf-8") as notes:
                    notes.write(line)
        finally:
            busy.now = False

    sys.addaudithook(hook)


def effect_of(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """The kind of effect, and what is done to what; None where it has none."""
    if event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & _WRITING:
        path = os.fsdecode(arguments[0])
        return None if path.startswith(_DEVICES) else (CHANGES, f"writes {path}")
    if event == "http.client.send" and isinstance(arguments[1], bytes) and arguments[1].startswith(_REQUESTS):
        return CHANGES, f"sends a {arguments[1].split(maxsplit=1)[0].decode()} request"
    kind, verb = _EVENTS.get(event, ("", ""))
    return (kind, f"{verb} {arguments[0 if kind == CHANGES else -1]}") if kind else None


def own_function(frame: FrameType | None, program: str) -> str | None:
    """The innermost function of the program, if only libraries that act for it are further in, and the engine or a
    worker of Spark is further out."""
    function = None
    while frame is not None:
        module, file = f"{frame.f_globals.get('__name__', '')}.", frame.f_code.co_filename
        if function is not None and module.startswith(_CALLERS):
            return function
        if function is None and file.startswith(program) and "site-packages" not in file:
            function = frame.f_code.co_qualname
        elif function is None and module.startswith(_OTHERS):
            return None
        frame = frame.f_back
    return None
