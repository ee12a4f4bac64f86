"""Files as their readers see them: which are looked at, and what is a row of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import FileSink
from penstock.audit.compare import Decided
from penstock.audit.stores import part_of, read_files, rows_of

FINAL = "part-out-e0000000003-w00000-0123456789ab.{}"


def visible_rows(folder: Path, form: Any, data: bytes, **options: str) -> dict[Any, int]:
    sink = FileSink(str(folder), format=form, options=options)
    name = FINAL.format(form)
    (folder / name).write_bytes(data)
    found = read_files(sink, [Decided("q", "out", 3, 1, 0, 9, 0, {"final": name})], (), list)
    assert not found.others
    return {key: part.rows for key, part in found.parts.items()}


@pytest.mark.parametrize(
    ("form", "data", "options", "rows"),
    [
        ("json", b'{"a":"x"}\n{"a":"y"}\n', {}, 2),
        ("csv", b"a,b\n1,2\n\n3,4\n", {"header": "true"}, 3),
        ("csv", b'1,"two\nlines"\n3,"a \\" quote"\n', {}, 2),
        ("csv", b"1;2|3;4|", {"lineSep": "|"}, 2),
        ("json", b"", {}, 0),
        ("parquet", b"no file of Parquet", {}, 0),
    ],
)
def test_rows_of_a_file(tmp_path: Path, form: str, data: bytes, options: dict[str, str], rows: int) -> None:
    assert visible_rows(tmp_path, form, data, **options) == {(3, 1, 0): rows}


def test_files_of_other_sinks_and_other_epochs_are_passed_over(tmp_path: Path) -> None:
    for name in ("part-other-e0000000003-w00000-ab.json", "part-out-e0000000004-w00000-ab.json", "_hidden", ".crc"):
        (tmp_path / name).write_bytes(b"{}\n")
    assert visible_rows(tmp_path, "json", b"{}\n") == {(3, 1, 0): 1}
    (tmp_path / FINAL.format("json")).unlink()
    found = read_files(
        FileSink(str(tmp_path), format="json"),
        [Decided("q", "out", 3, 1, 0, 9, 0, {"final": FINAL.format("json")})],
        (),
        list,
    )
    assert (found.parts, list(found.gone)) == ({}, [(3, 1, 0)])


def test_columns_that_cannot_be_hashed_are_counted() -> None:
    nested = part_of(pa.table({"a": [[1], [2]]}), "here")
    assert (nested.rows, nested.sums) == (2, [])
    missing = part_of(pa.table({"a": [1]}), "here", [pa.field("b", pa.int64())])
    assert (missing.rows, missing.sums) == (1, [])


def test_every_row_of_a_folder_of_any_writer(tmp_path: Path) -> None:
    (tmp_path / FINAL.format("json")).write_bytes(b'{"a":1}\n')
    (tmp_path / "by_hand.json").write_bytes(b'{"a":2}\n{"a":3}\n')
    (tmp_path / "_temporary.json").write_bytes(b'{"a":4}\n')
    rows = rows_of(FileSink(str(tmp_path), format="json"))
    assert rows is not None
    assert sorted(rows.column("value").to_pylist()) == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_a_folder_without_files_has_no_columns_and_a_sink_without_a_reader_has_no_rows(tmp_path: Path) -> None:
    empty = rows_of(FileSink(str(tmp_path)))
    assert empty is not None
    assert (empty.num_rows, empty.num_columns) == (0, 0)
    assert rows_of(object()) is None
