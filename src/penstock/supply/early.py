"""A job's JVM, started before the job's program is loaded: Python needs its time for that, and Java for itself.

What a program asks of Java is known when it asks. But it mostly asks what it asked the last time, so that is kept, for
each program; the next process of that program starts such a JVM at once, and `adopt` finds it where the program asks
for just that, in just that environment. Anything else is started anew, and after two wrong guesses none is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.naming import user_cache
from penstock.secrets import masked
from penstock.supply.notes import read_note, write_note

_VERSION = 1
_WRONG = 2  # times, after which a program is known to change its mind
_UNCLAIMED_SECONDS = 120.0
TOLD = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The file in which Java says where it listens."""


@dataclass(frozen=True)
class StartedJava:
    """A JVM that comes up; `told` is there when it has."""

    process: subprocess.Popen[bytes]
    told: Path

    def forget(self) -> None:
        """Once it was asked where it listens, or has ended."""
        shutil.rmtree(self.told.parent, ignore_errors=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.forget()


class _Early:
    """What this process has started ahead, and where it notes what it asked for in the end."""

    def __init__(self, note: Path) -> None:
        self.note, self.lock = note, threading.Lock()
        self.java: StartedJava | None = None
        self.guess: tuple[list[str], dict[str, str]] | None = None
        self.wrong = 0


_early: _Early | None = None


def start(command: Sequence[str], environment: Mapping[str, str]) -> StartedJava:
    """A JVM that lives as long as this process, or until somebody ends it. Raises OSError where there is none."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    told = folder / "connection"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # Java ends when nobody holds the other end any more
            env={**environment, TOLD: str(told)},
            preexec_fn=_ignore_interrupts,
        )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return StartedJava(process, told)


def begin(program: Path) -> None:
    """Call first of all in a process that is to run `program`. Nothing that goes wrong here matters."""
    global _early
    name = hashlib.sha256(f"{program.absolute()}\n{os.getcwd()}".encode()).hexdigest()[:24]
    _early = early = _Early(user_cache() / "java" / f"early-{name}.json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(read_note(early.note) or "")
        if note["version"] != _VERSION:
            return
        early.guess = list(map(str, note["command"])), {**os.environ, **note["environment"]}
        early.wrong = int(note["wrong"])
        if early.wrong >= _WRONG:
            return
        early.java = start(*early.guess)
        timer = threading.Timer(_UNCLAIMED_SECONDS, _discard, (early,))
        timer.daemon = True
        timer.start()


def adopt(command: Sequence[str], environment: Mapping[str, str]) -> StartedJava | None:
    """The JVM that was started ahead, if it is the one that is asked for; one that is not is ended. Either way, what
    was asked for is noted for the next time."""
    early = _early
    if early is None:
        return None
    with early.lock:
        java, early.java = early.java, None
    fits = early.guess == (list(command), dict(environment))
    _note(early, command, environment, wrong=0 if early.guess is None or fits else early.wrong + 1)
    if java is not None and (not fits or java.process.poll() is not None):
        java.end()
        return None
    return java


def _discard(early: _Early) -> None:
    with early.lock:
        java, early.java = early.java, None
    if java is not None:
        java.end()


def _note(early: _Early, command: Sequence[str], environment: Mapping[str, str], *, wrong: int) -> None:
    more = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    note = {"command": list(command), "environment": {**more, **_java_variables(environment)}}
    text = json.dumps({"version": _VERSION, "wrong": wrong, **note})
    if masked("\n".join(command)) != "\n".join(command) or "--properties-file" in command:
        return  # it names a secret, or a file that will be gone
    write_note(early.note, text)


def _java_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program's start sets in its own environment, for Java among others, before it comes to ask."""
    names = ("JAVA_HOME", "LOG4J_CONFIGURATION_FILE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {name: environment[name] for name in names if name in environment}


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's to answer
