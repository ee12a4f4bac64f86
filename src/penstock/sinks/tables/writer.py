"""A task's side of both table sinks: data files where they will stay, unseen until the table's log names them.

Before a data file is opened a marker for it is written under `_penstock`; it goes when the file is committed or
aborted. So the files that nobody has decided about are found by listing the markers, never the whole table.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Writer, WriterScope
from penstock.errors import DataError, PreCommitFailed
from penstock.sinks.tables.columns import adapt, check_partitions, fit, plain, types_of
from penstock.sinks.tables.datafile import DataFile, by_partition
from penstock.sinks.tables.target import Known, Target, Written, data_name, marker_body, marker_name

if TYPE_CHECKING:
    import pyarrow as pa

#: What all open files of a writer may buffer together before the row groups under way are written out.
BUFFER_BYTES = 256 << 20
#: Files a writer has open at once; the one unused for longest is completed when another partition comes.
OPEN_FILES = 64


class TableWriter(Writer):
    """Writes data files."""

    def __init__(self, target: Target, scope: WriterScope, compression: str, create: bool) -> None:
        self._target, self._scope, self._compression, self._create = target, scope, compression, create
        self._token = secrets.token_hex(10)
        self._number = 0
        self._known: Known | None = None
        self._columns: pa.Schema | None = None
        self._open: dict[tuple[Any, ...], DataFile] = {}
        self._done: list[Written] = []
        self._names: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        with self._target.translate_errors():
            if self._known is None:
                self._begin(batch.schema)
            known, columns = self._known, self._columns
            assert known is not None
            assert columns is not None
            rows = adapt(batch, columns, self._target.where)
            for values, part in by_partition(rows, known.partition_by):
                self._put(values, part.select(self._stored(known, columns)))
            if sum(file.buffered for file in self._open.values()) > BUFFER_BYTES:
                for file in self._open.values():
                    file.flush()

    def _begin(self, given: pa.Schema) -> None:
        hint = self._scope.hints.get("table")
        known = Known.from_json(hint) if hint else self._target.look()
        if known is None and self._create:
            self._target.create(plain(given))
            known = self._target.look()
        if known is None:
            raise PreCommitFailed(
                f"{self._target.where} does not exist any more.",
                safe="nothing of this epoch is visible.",
                to_do="make the table again, or let the sink create it.",
            )
        columns = fit(given, known.schema, self._target.where)
        check_partitions(known.partition_by, columns, self._target.where)
        self._known, self._columns = known, columns
        self._storage = self._target.storage(known)

    def _stored(self, known: Known, columns: pa.Schema) -> list[str]:
        kept = known.extra.get("partitions_in_files", True)
        return [name for name in columns.names if kept or name not in known.partition_by]

    def _put(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None)
        if file is not None and not file.takes(rows):
            self._finish(file)
            file = None
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._finish(self._open.pop(next(iter(self._open))))
            file = self._start(values)
            file.takes(rows)
        self._open[values] = file  # the last one is the one used last
        file.write(rows)

    def _start(self, values: tuple[Any, ...]) -> DataFile:
        known, columns = self._known, self._columns
        assert known is not None
        assert columns is not None
        if "" in values:
            raise DataError(
                f"A row has empty text in column {known.partition_by[values.index('')]!r}, by which "
                f"{self._target.where} is partitioned: tables cannot tell it from null.",
                safe="nothing of this epoch is visible.",
                to_do="turn empty text into null or into a word, for example with nullif.",
            )
        import pyarrow as pa

        name = data_name(self._scope, self._token, self._number)
        self._number += 1
        self._names.append(name)
        self._storage.write_durably(marker_name(self._scope.sink, name), marker_body(known.position, values))
        stored = pa.schema([columns.field(one) for one in self._stored(known, columns)])
        return DataFile(name, self._storage.stage(name), stored, self._compression, values)

    def _finish(self, file: DataFile) -> None:
        try:
            written = file.finish()
            if self._storage.size(marker_name(self._scope.sink, file.name)) is None:
                raise FileNotFoundError(file.name)
        except FileNotFoundError as error:
            file.discard()
            raise PreCommitFailed(
                f"The file {file.name} of {self._target.where} was removed while it was written: a newer run has taken "
                "over, or somebody cleaned the folder.",
                safe="nothing of this epoch is visible; it replays from the same positions.",
                to_do="nothing if the job was restarted; otherwise keep other programs out of _penstock.",
            ) from error
        except BaseException:
            file.discard()
            raise
        self._done.append(written)

    def pre_commit(self) -> Mapping[str, Any]:
        known, columns = self._known, self._columns
        assert known is not None
        assert columns is not None
        with self._target.translate_errors():
            while self._open:
                self._finish(self._open.pop(next(iter(self._open))))
        return {
            "token": self._token,
            "generation": self._scope.sink.generation,
            "position": dict(known.position),
            "columns": types_of(columns),
            "partition_by": list(known.partition_by),
            # No statistics and no partition values: the ledger holds nothing of any row. See `TableCommitter._about`.
            "files": [{"name": file.name, "bytes": file.size} for file in self._done],
        }

    def abort(self) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.discard()
        self._open, self._done = {}, []
        for name in self._names:
            with contextlib.suppress(OSError):
                self._storage.remove(name)
                self._storage.remove(marker_name(self._scope.sink, name))
