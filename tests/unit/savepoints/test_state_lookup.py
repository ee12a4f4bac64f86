"""Looking into state: which path means what, and rows of a canonical savepoint, without Spark."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.checkpoint.layout import seal
from penstock.cli.main import app
from penstock.errors import ConfigurationError, LedgerCorrupt, LedgerFromTheFuture, SavepointIncomplete
from penstock.savepoints.savepoint import METADATA, Kind, SavedQuery, Savepoint
from penstock.savepoints.stores import choose_rows, find_places, list_rows, parse_key, read_rows
from penstock.spark_state.store_rows import visible_columns
from penstock.storage.local import LocalTree
from tests.support.state_files import HASHMAP, KEY, PARTITIONS, PROVIDER, aggregation


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(**columns: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [field(name, kind) for name, kind in columns.items()]}


WINDOW = struct(start="timestamp", end="timestamp")
WIDE = struct(id="long", amount="decimal(9,2)", window=WINDOW, flag="boolean")
ROWS = pa.table(
    {
        "key": [
            {
                "id": number,
                "amount": Decimal(f"{number}.50"),
                "window": {"start": dt.datetime(2026, 1, number, tzinfo=dt.UTC), "end": None},
                "flag": number % 2 == 0,
            }
            for number in range(1, 6)
        ],
        "value": [{"n": number} for number in range(1, 6)],
    }
)


def canonical(root: Path) -> Path:
    """A savepoint with one query, whose state is in two files of Parquet."""
    state = root / "queries" / "q" / "state"
    (state / "0" / "00-default").mkdir(parents=True)
    pq.write_table(ROWS[:3], state / "0" / "00-default" / "a.parquet")
    pq.write_table(ROWS[3:], state / "0" / "00-default" / "b.parquet")
    family = {"name": "default", "key": WIDE, "value": struct(n="long"), "folder": "0/00-default"}
    store = {
        "name": "default",
        "prefix_columns": 0,
        "partitions": 2,
        "schema_files": [],
        "partition_schema": WIDE,
        "families": [family],
    }
    operator = {"id": 0, "name": "stateStoreSave", "version": 1, "number": 0, "properties": None, "files": {}}
    body = {
        "version": 1,
        "batch": 4,
        "spark": "4.2.0",
        "conf": {PROVIDER: HASHMAP, PARTITIONS: "2"},
        "operators": [{**operator, "stores": [store]}],
    }
    (state / "layout.json").write_text(json.dumps(body))
    query = SavedQuery(4, "id", 1, ("in",), {}, None, "hashmap", 2, "update", ({"id": 0},))
    saved = Savepoint("abc", Kind.CANONICAL, "job", 0.0, "0", "4.2.0", {"q": query}, {})
    (root / METADATA).write_bytes(saved.to_bytes())
    return root


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


def look_up(root: Path, key: str | None, limit: int = 20) -> list[dict[str, Any]]:
    [kept] = [one for place in find_places(str(root)) for one in list_rows(place)]
    return read_rows(kept, key, limit, no_spark)


def test_a_canonical_savepoint(tmp_path: Path) -> None:
    [place] = find_places(str(canonical(tmp_path)))
    [kept] = list_rows(place)
    assert (place.query, place.batch, place.canonical) == ("q", 4, True)
    assert (kept.name, kept.rows, kept.partitions, kept.backend) == ("default", 5, 2, "canonical (from hashmap)")
    assert kept.bytes > 0


@pytest.mark.parametrize(
    "key",
    [
        '{"id": 4}',
        '{"id": "4", "flag": true}',
        '{"amount": 4.5}',
        '{"window": {"start": "2026-01-04 00:00:00Z"}}',
        '{"id": 4, "window": {"end": null}}',
    ],
)
def test_a_key_is_found(tmp_path: Path, key: str) -> None:
    assert [row["value"] for row in look_up(canonical(tmp_path), key)] == [{"n": 4}]


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    root = canonical(tmp_path)
    assert look_up(root, '{"id": 40}') == []
    assert look_up(root, '{"id": "four"}') == []
    assert len(look_up(root, None)) == 5
    assert len(look_up(root, '{"flag": false}', limit=2)) == 2


def test_what_a_key_means() -> None:
    one = struct(account="string")
    assert parse_key("alice", one) == {"account": "alice"}
    assert parse_key('"alice"', one) == {"account": "alice"}
    assert parse_key("17", one) == {"account": 17}
    assert parse_key('{"account": null}', one) == {"account": None}
    for text in ("17", '{"idd": 1}', "[1]", "{}"):
        with pytest.raises(ConfigurationError, match="does not say which key is meant"):
            parse_key(text, WIDE)


def test_a_layout_from_the_future_and_a_damaged_one(tmp_path: Path) -> None:
    [place] = find_places(str(canonical(tmp_path)))
    place.folder.put("layout.json", b'{"version": 2}')
    with pytest.raises(LedgerFromTheFuture):
        list(list_rows(place))
    place.folder.put("layout.json", b"{")
    with pytest.raises(LedgerCorrupt, match="written out completely"):
        list(list_rows(place))


def test_a_checkpoint_of_sparks(tmp_path: Path) -> None:
    aggregation(tmp_path)
    (tmp_path / "state" / "0" / "0" / "4.delta").write_bytes(b"x" * 100)
    [place] = find_places(str(tmp_path))
    [kept] = list_rows(place)
    assert (place.query, place.batch, kept.backend, kept.rows) == (None, 3, "hashmap", None)
    assert kept.bytes > 100
    assert kept.family.key == KEY


def job(root: Path, uids: tuple[str, ...], history: str = "spark") -> LocalTree:
    folder = LocalTree(root)
    for uid in uids:
        folder.put(f"queries/{uid}.json", b"{}")
        aggregation(root / uid / history)
    return folder


def test_a_jobs_folder(tmp_path: Path) -> None:
    """The history that counts is looked at, and a checkpoint by its number."""
    folder = job(tmp_path, ("a",))
    assert [(one.query, one.batch) for one in find_places(str(tmp_path))] == [("a", 3)]
    assert [(one.query, one.batch) for one in find_places(f"{tmp_path}/chk-2")] == [("a", 2)]
    job(tmp_path, ("a",), "spark-0123456789ab")
    body = {"id": "x", "source": "", "savepoint": "", "time": 0, "history": "spark-0123456789ab", "epochs": {}}
    folder.put("restores/0000000001.json", seal("restore", body))
    [place] = find_places(str(tmp_path))
    assert place.folder.location.endswith("/a/spark-0123456789ab")


def test_one_of_several(tmp_path: Path) -> None:
    job(tmp_path, ("a", "b"))
    found = [kept for place in find_places(str(tmp_path)) for kept in list_rows(place)]
    assert choose_rows(found, "b", None, None).place.query == "b"
    with pytest.raises(ConfigurationError, match="Several kinds of rows fit") as refused:
        choose_rows(found, None, 0, None)
    assert "--query a --operator 0 --store default" in refused.value.to_do
    with pytest.raises(ConfigurationError, match="No state fits"):
        choose_rows(found, "b", 7, None)
    with pytest.raises(SavepointIncomplete, match="no global checkpoint 5"):
        find_places(f"{tmp_path}/chk-5")


def test_what_is_nothing_of_it(tmp_path: Path) -> None:
    with pytest.raises(SavepointIncomplete, match="no savepoint, no job's folder"):
        find_places(str(tmp_path))


def test_the_command(tmp_path: Path) -> None:
    root = str(canonical(tmp_path))
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["state", root, "--json"]).output)
    assert [(one["query"], one["operator"], one["rows"], one["value"]) for one in listed] == [("q", 0, 5, "n:bigint")]
    assert listed[0]["key"].startswith("id:bigint,amount:decimal(9,2),window:struct<")
    found = json.loads(runner.invoke(app, ["state", root, "--key", '{"id": 2}', "--json"]).output)
    assert found[0]["value"] == {"n": 2}
    table = runner.invoke(app, ["state", root, "--operator", "0", "--limit", "1"]).output
    assert "Operator 0 (stateStoreSave), default" in table
    assert "There is no such row." in runner.invoke(app, ["state", root, "--key", '{"id": 9}']).output


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
