"""The start of a run, as one private file: the command line is parsed and settings are resolved once, by
`penstock run`; the supervisor and every driver read the result. `-D` may give passwords, so only its owner reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.storage.private import own_folder, read_trusted


@dataclass(frozen=True)
class Start:
    """What `penstock run` was asked for. `options` are those of `-D`, `file` the content of `file_name`; the program's
    own arguments come between them. `restart` and `standby` are what the two resolve to, and hold until a driver
    reports otherwise. `restores`: it begins with a savepoint. `log` is a detached run's. `alone`: the job must not run
    already."""

    id: str
    script: str
    arguments: Sequence[str] = ()
    options: Mapping[str, str] | None = None
    file_name: str = ""
    file: Mapping[str, str] | None = None
    restart: Mapping[str, Any] | None = None
    standby: bool = False
    restores: bool = False
    log: str | None = None
    alone: bool = False

    def write(self) -> Path:
        """A private file in the registry's folder, or else in the system's temporary one. Raises OSError."""
        from penstock.ops.process.registry import home

        try:
            return self._write(own_folder(home() / "starts"))
        except OSError:
            return self._write(None)

    def _write(self, folder: Path | None) -> Path:
        import tempfile  # only a driver's start is in a hurry, and that reads

        handle, name = tempfile.mkstemp(prefix=f"{self.id}.", suffix=".json", dir=folder)  # made with mode 0600
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        return Path(name)

    @classmethod
    def read(cls, file: Path) -> Start:
        """Raises `PermissionError` for a file that another user can have written: it names a program to run. Fields
        that this version does not know, as after an upgrade while the supervisor runs, are left out."""
        body = json.loads(read_trusted(file))
        return cls(**{field.name: body[field.name] for field in fields(cls) if field.name in body})

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """In the block, settings come from this start, and the next job that is registered is this run."""
        from penstock.config.levels import Texts, using
        from penstock.ops.process.registry import expect_run

        expect_run(self.id, alone=self.alone)
        try:
            with using(Texts("-D", self.options or {}), Texts(self.file_name, self.file or {})):
                yield
        finally:
            expect_run(None)
