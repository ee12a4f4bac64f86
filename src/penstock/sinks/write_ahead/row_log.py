"""The folder of a write-ahead sink: rows that wait, and notes of what was handed over.

    <log>/<job>/<uid>/rows/g…-e…-a…-p…-t…-<token>.arrow       the rows of one writer
    <log>/<job>/<uid>/notes/e<epoch>-<token>.begun            names whose rows the target may have, from now on
    <log>/<job>/<uid>/notes/e<epoch>-<token>.done             names whose rows the target has taken

A note of `begun` is durable before the first of its rows leaves; a note of `done` before their log is removed. So a
name on neither, whose log is gone, was certainly never handed over.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.checkpoint.inflight_log import LogFile, LogWriter, read_log
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.naming import safe_part
from penstock.sinks.files.commit import label
from penstock.storage.open import task_tree
from penstock.storage.tree import full_disk_named

if TYPE_CHECKING:
    import pyarrow as pa

#: Epochs whose notes are kept. One would do in order; the rest is for epochs that commit side by side.
KEPT_EPOCHS = 16

_ROWS = re.compile(r"g(?P<generation>\d+)-e\d+-a\d+-p\d+-t\d+-[0-9a-f]+\.arrow")
_NOTE = re.compile(r"e(?P<epoch>\d+)-[0-9a-f]+\.(?P<kind>begun|done)")


def rows_name(scope: WriterScope, token: str) -> str:
    return (
        f"g{scope.sink.generation:08d}-e{scope.epoch:010d}-a{scope.attempt}-p{scope.partition:05d}"
        f"-t{scope.task_attempt}-{token}.arrow"
    )


class RowLog:
    """One sink's folder, reached from the driver and from tasks."""

    def __init__(self, location: str, scope: SinkScope) -> None:
        self._location = location
        self._folder = f"{label(scope.job)}/{label(scope.uid)}"
        self._storage = task_tree(location)

    def create(self) -> None:
        with full_disk_named(self._location, "nothing was started"):
            self._storage.create_folder(f"{self._folder}/rows")
            self._storage.create_folder(f"{self._folder}/notes")

    # Rows

    def open(self, name: str, schema: pa.Schema) -> LogWriter:
        return LogWriter(self._location, self._rows(name), schema)

    def read(self, name: str, size: int, crc: int) -> Iterator[pa.RecordBatch]:
        return read_log(self._location, LogFile(self._rows(name), size, crc))

    def size(self, name: str) -> int | None:
        return self._storage.size(self._rows(name))

    def secure(self, name: str) -> None:
        """In the driver: what a task has written survives a power cut."""
        self._storage.secure(self._rows(name))

    def remove(self, names: Iterable[str]) -> int:
        return sum(self._storage.remove(self._rows(name)) for name in names)

    def waiting(self) -> dict[str, int]:
        """The names of all rows there are, with their generation."""
        found = ((name, _ROWS.fullmatch(name)) for name in self._storage.file_names(f"{self._folder}/rows"))
        return {name: int(match["generation"]) for name, match in found if match}

    # Notes

    def note(self, kind: str, epoch: int, names: Sequence[str]) -> None:
        """Durable when this returns."""
        if names:
            content = "".join(f"{name}\n" for name in names).encode()
            note = f"{self._folder}/notes/e{epoch:010d}-{secrets.token_hex(6)}.{kind}"
            self._storage.write_durably(note, content)

    def read_notes(self) -> tuple[set[str], set[str]]:
        """The names that were begun, and those that are done."""
        names: dict[str, set[str]] = {"begun": set(), "done": set()}
        for note, match in self._notes():
            # A note cut short by a crash speaks of what had not happened yet; the cut name matches nothing.
            names[match["kind"]].update(self._storage.read(note).decode(errors="replace").split("\n")[:-1])
        return names["begun"], names["done"]

    def forget(self, before: int) -> None:
        for note, match in self._notes():
            if int(match["epoch"]) < before:
                self._storage.remove(note)

    def _notes(self) -> list[tuple[str, re.Match[str]]]:
        found = ((name, _NOTE.fullmatch(name)) for name in self._storage.file_names(f"{self._folder}/notes"))
        return [(f"{self._folder}/notes/{name}", match) for name, match in found if match]

    def _rows(self, name: str) -> str:
        return f"{self._folder}/rows/{safe_part(name, self._location)}"
