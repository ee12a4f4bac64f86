"""The demo on files: reads the two folders as any consumer would, by listing them."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dev.demo.result import Outputs
from penstock.testing.oracle import Observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.dev.demo.job_process import JobConfig
    from penstock.dev.demo.plan import Progress

#: The two outputs; the names of their queries too.
OUTPUTS = ("payments", "totals")

_EPOCH = re.compile(r"-e(\d+)-")

_EMPTY = {
    "payments": pa.schema([("id", pa.int64()), ("account", pa.string()), ("amount", pa.int64())]),
    "totals": pa.schema([("account", pa.string()), ("n", pa.int64()), ("total", pa.int64())]),
}


def output_folder(folder: str | Path, name: str) -> Path:
    return Path(folder) / "out" / name


class FileStage:
    """Parquet in two folders. The source is bounded, so the job ends by itself."""

    endless = False

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self._looks: list[Observation] = []
        self._sizes: dict[Path, int] = {}  # a visible file never changes, so one look into it is enough

    def look(self) -> None:
        for name in OUTPUTS:
            began = time.time()
            files = self._list(name)
            took = time.time() - began
            self._looks.append(Observation(began, {name: self._count(files)}, took=took))

    def full(self) -> bool:
        return False

    def outputs(self, progress: Progress) -> Outputs:
        return Outputs(
            payments=self._read("payments"),
            totals=self._read("totals"),
            sizes={name: self._count(self._list(name)) for name in OUTPUTS},
            looks=self._looks,
        )

    def close(self) -> None:
        pass

    def _list(self, name: str) -> list[Path]:
        # By name is by epoch: the order in which the files were written.
        return sorted(output_folder(self.config.folder, name).glob("[!_.]*.parquet"))

    def _count(self, files: Sequence[Path]) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for file in files:
            if file not in self._sizes:
                self._sizes[file] = pq.read_metadata(file).num_rows
            counts[_epoch(file)] += self._sizes[file]
        return dict(counts)

    def _read(self, name: str) -> pa.Table:
        columns = _EMPTY[name].names
        tables = [pq.ParquetFile(file).read(columns=columns).select(columns) for file in self._list(name)]
        return pa.concat_tables([_EMPTY[name].empty_table(), *tables], promote_options="permissive")


def _epoch(file: Path) -> int:
    match = _EPOCH.search(file.name)
    return int(match[1]) if match else -1
