"""What a run leaves behind: the events its view is folded from, in files of bounded size below the registry.

docs/reference/rest.md lists the files. Only their owner can read them: errors may quote rows. Recovery needs none of
this; no failure here stops a job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.ops.process.registry import ID, history_folder, home
from penstock.ops.server import run_view
from penstock.storage.local import create_own, own_folder, read_own

log = logging.getLogger("penstock")

VERSION = 1
EPOCHS, STORY = "epochs", "story"
SEGMENT_BYTES = {EPOCHS: 2 << 20, STORY: 512 << 10}
SEGMENTS = {EPOCHS: 6, STORY: 3}  # so a run keeps at most 13.5 MiB
MOST_BYTES = 256 << 20  # of all runs together; beyond it the oldest of those that have ended are deleted

_YOUNG_SECONDS = 3600.0
_WAITING = 10_000  # events not yet written
_CLOSE_SECONDS = 5.0
_SEGMENT = re.compile(r"^(?P<kind>epochs|story)-(?P<number>\d{8})\.jsonl$")


@dataclass
class PastRun:
    """What is left of a run; `damage` says what could not be read."""

    description: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    story: list[dict[str, Any]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        return sorted((*self.story, *self.epochs), key=_time)


class HistoryWriter:
    """An `Events` listener. Writes in a thread of its own, which calls `describe` once, before the first line."""

    def __init__(self, id: str, describe: Callable[[], Mapping[str, Any]], root: Path | None = None) -> None:
        self._folder, self._describe = history_folder(id, root), describe
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._work, name="penstock-history", daemon=True)
        self._thread.start()

    def on_event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == run_view.RECORDED or event.get("event") in run_view.STORY:
            with contextlib.suppress(queue.Full):  # the disk hangs, or failed
                self._waiting.put_nowait(event)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        try:
            own_folder(self._folder)
            _write_whole(self._folder / "description.json", {"version": VERSION, **self._describe()})
            logs = {kind: _Segments(self._folder, kind) for kind in (EPOCHS, STORY)}
            while (event := self._waiting.get()) is not None:
                logs[EPOCHS if event.get("event") == run_view.RECORDED else STORY].write(event)
        except Exception as error:
            log.warning("the job runs, but keeps no history: %s", error)


class _Segments:
    """Files of one kind; lines are appended to the newest."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        numbers = _numbers(folder, kind)
        self._number = numbers[-1] if numbers else 1
        file = self._file(self._number)
        self._size = file.stat().st_size if numbers else 0
        self._torn = bool(self._size) and not file.read_bytes().endswith(b"\n")

    def write(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, default=str).encode() + b"\n"
        if self._torn:  # the process before this one died in the middle of a line
            line, self._torn = b"\n" + line, False
        if self._size and self._size + len(line) > SEGMENT_BYTES[self._kind]:
            self._number, self._size = self._number + 1, 0
            for old in _numbers(self._folder, self._kind)[: -SEGMENTS[self._kind] + 1]:
                self._file(old).unlink(missing_ok=True)
        with open(create_own(self._file(self._number), os.O_APPEND), "ab", buffering=0) as file:
            file.write(line)
        self._size += len(line)

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._kind}-{number:08d}.jsonl"


def read_history(id: str, root: Path | None = None) -> PastRun:
    """What a run has left, as far as it can be read; never raises."""
    folder, past = history_folder(id, root), PastRun()
    if not ID.fullmatch(id) or not folder.is_dir():
        return past
    try:
        body = json.loads(read_own(folder / "description.json"))
        if not isinstance(body, dict) or int(body["version"]) > VERSION:
            raise ValueError("it is of a newer version")
        if not isinstance(body.get("plan") or {}, dict) or not isinstance(body.get("settings") or [], list):
            raise ValueError("it is not one")
        past.description = body
    except FileNotFoundError:
        past.damage.append("its description is missing")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        past.damage.append(f"its description cannot be read: {error}")
    for kind, into in ((EPOCHS, past.epochs), (STORY, past.story)):
        for number in _numbers(folder, kind):
            _read_lines(folder / f"{kind}-{number:08d}.jsonl", into, past.damage)
    return past


def keep_audit(id: str, report: str) -> None:
    with contextlib.suppress(OSError):  # the audit has ended, and its verdict is known
        _write_whole(own_folder(history_folder(id)) / "audit.json", json.loads(report))


def read_audit(id: str) -> dict[str, Any] | None:
    """None where no audit has ended, or its report cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        body = json.loads(read_own(history_folder(id) / "audit.json"))
        return body if isinstance(body, dict) else None
    return None


def fingerprint(id: str, root: Path | None = None) -> tuple[Any, ...]:
    """Differs once something more is written."""
    with contextlib.suppress(OSError):
        files = [(file.name, file.stat()) for file in sorted(history_folder(id, root).iterdir())]
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
    return ()


def prune(known: set[str], ended: set[str], root: Path | None = None) -> None:
    """Delete histories of runs that are not `known`; and, while the `ended` ones take too much, the oldest of those."""
    folder = (root or home()) / "history"
    sizes: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for run in folder.iterdir():
            if not ID.fullmatch(run.name) or (run.name in known and run.name not in ended):
                continue
            files = [file.stat() for file in run.iterdir()]
            newest = max(stat.st_mtime for stat in (run.stat(), *files))
            if run.name not in known:
                if newest < time.time() - _YOUNG_SECONDS:  # a younger one may be of a job that starts just now
                    shutil.rmtree(run, ignore_errors=True)
                continue
            sizes.append((newest, sum(stat.st_size for stat in files), run))
    total = sum(size for _, size, _ in sizes)
    for _, size, run in sorted(sizes):
        if total > MOST_BYTES:
            shutil.rmtree(run, ignore_errors=True)
            total -= size


def _read_lines(file: Path, into: list[dict[str, Any]], damage: list[str]) -> None:
    try:
        text = read_own(file, errors="replace")
    except OSError as error:
        damage.append(f"{file.name} cannot be read: {error}")
        return
    bad = 0
    for line in filter(str.strip, text.splitlines()):
        try:
            body = json.loads(line)
            _time(body)
            into.append(body)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            bad += 1
    if bad:
        damage.append(f"{file.name} has {bad} damaged lines, which are left out")


def _time(event: Mapping[str, Any]) -> float:
    return float(event["time"])


def _numbers(folder: Path, kind: str) -> list[int]:
    with contextlib.suppress(OSError):
        matches = (_SEGMENT.match(file.name) for file in folder.iterdir())
        return sorted(int(match["number"]) for match in matches if match is not None and match["kind"] == kind)
    return []


def _write_whole(path: Path, body: Mapping[str, Any]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with open(create_own(aside), "w", encoding="utf-8") as file:
        json.dump(body, file, default=str)
    aside.replace(path)
