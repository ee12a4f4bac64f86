"""Local files of an Iceberg table that survive a power cut: pyiceberg leaves them to the operating system, and a
catalog that points to metadata which was never written would be worse than one that points to none."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.storage.durable import ensure_folder, sync

NAME = f"{__name__}.SyncedFileIO"


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but what it writes to a local disk is on the disk when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _SyncedFile(location=location, path=path, fs=self.fs_by_scheme(scheme, host))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        ensure_folder(Path(self._path).parent)
        return io.BufferedWriter(_SyncedStream(self._path, "wb" if overwrite else "xb"))


class _SyncedStream(io.FileIO):
    def close(self) -> None:
        if self.closed:
            return
        os.fsync(self.fileno())
        super().close()
        sync(Path(os.fsdecode(self.name)).parent)
