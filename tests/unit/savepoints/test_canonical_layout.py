"""What a canonical savepoint says of its state, what Parquet can hold, and a global checkpoint that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LedgerCorrupt, LedgerFromTheFuture, SavepointIncomplete
from penstock.savepoints.canonical import read_layout
from penstock.savepoints.restorable import global_epochs
from penstock.spark_state.store_rows import visible_columns
from penstock.storage.local import LocalTree


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(**columns: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field(name, kind) for name, kind in columns.items()]}


def test_a_layout_from_the_future_and_a_damaged_one(tmp_path: Path) -> None:
    folder = LocalTree(tmp_path)
    folder.put("layout.json", b'{"version": 2}')
    with pytest.raises(LedgerFromTheFuture):
        read_layout(folder)
    folder.put("layout.json", b"{")
    with pytest.raises(LedgerCorrupt, match="written out completely"):
        read_layout(folder)


def test_a_global_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SavepointIncomplete, match="no global checkpoint 5"):
        global_epochs(LocalTree(tmp_path), 5)


def test_columns_that_parquet_can_hold() -> None:
    schema = {
        "type": "struct",
        "fields": [
            field("a", "long"),
            field("A", "string"),
            field("nothing", "void"),
            field("nested", {"type": "array", "elementType": "void", "containsNull": True}),
            field("empty", struct()),
            field("map", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
            field("twice", {"type": "struct", "fields": [field("x", "long"), field("X", "long")]}),
            field("a", "date"),
        ],
    }
    assert visible_columns(schema) == [(0, "a"), (1, "A_2"), (5, "map"), (7, "a_3")]
