"""The parts of the table sinks that need no table: statistics, columns, partitions, what people are shown."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import DeltaSink, IcebergSink
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.errors import AccessDenied, ConfigurationError, MissingExtra, SchemaMismatch, StorageFull
from penstock.secrets import without_secrets
from penstock.sinks.tables.delta import PREFIX, partition_values, statistics, unsupported
from penstock.sinks.tables.sink import public_address
from penstock.sinks.tables.target import (
    adapt,
    changed,
    data_name,
    fit,
    marker_name,
    parse_marker,
    plain,
    strict_inside,
    token_of,
    translated,
    types_of,
    widens,
)
from penstock.sinks.tables.writer import DataFile, by_partition
from penstock.storage.tree import StagedFile


class Kept(io.BytesIO):
    size = -1

    def close(self) -> None:
        if not self.closed:
            self.size = self.getbuffer().nbytes
        super().close()


class InMemory(StagedFile):
    def __init__(self, lost: int = 0) -> None:
        self.stream, self._lost = Kept(), lost

    def finish(self) -> int:
        return int(self.stream.size) - self._lost

    def discard(self) -> None:
        return None


def stats(columns: dict[str, pa.Array], batches: int = 1, indexed: int = 32) -> dict[str, Any]:
    rows = pa.RecordBatch.from_pydict(columns)
    file = DataFile("name", InMemory(), rows.schema, "none", ())
    step = max(1, rows.num_rows // batches)
    for start in range(0, rows.num_rows, step):
        assert file.takes(rows.slice(start, step))
        file.write(rows.slice(start, step))
        file.flush()
    found: dict[str, Any] = json.loads(statistics(file.finish(), rows.schema, indexed))
    return found


# ── what readers skip files by ───────────────────────────────────────────────────────────────────────────────────────


def test_the_log_knows_least_and_largest_over_all_row_groups() -> None:
    found = stats({"id": pa.array([5, 1, None, 9]), "day": pa.array([dt.date(2026, 1, i) for i in (4, 1, 3, 2)])}, 2)
    assert found["numRecords"] == 4
    assert found["nullCount"] == {"id": 1, "day": 0}
    assert found["minValues"] == {"id": 1, "day": "2026-01-01"}
    assert found["maxValues"] == {"id": 9, "day": "2026-01-04"}


def test_nan_hides_the_numbers_of_its_column() -> None:
    found = stats({"with": pa.array([1.0, math.nan]), "without": pa.array([1.0, 2.5])})
    assert found["maxValues"] == {"without": 2.5}
    assert found["nullCount"] == {"without": 0}


def test_a_file_with_statistics_takes_no_nan_and_one_without_takes_all() -> None:
    point = pa.struct([("x", pa.list_(pa.float32())), ("m", pa.map_(pa.string(), pa.float64()))])
    some = pa.array([{"x": [1.0, None], "m": [("a", 1.0)]}, None], point)
    rows = [pa.RecordBatch.from_pydict({"id": [1, 2], "p": column}) for column in (some, some)]
    for part in ({"x": [math.nan], "m": None}, {"x": None, "m": [("a", math.nan)]}):
        late = pa.RecordBatch.from_pydict({"id": [3], "p": pa.array([part], point)})
        file = DataFile("name", InMemory(), rows[0].schema, "none", ())
        for batch in rows:
            assert file.takes(batch)
            file.write(batch)
        file.flush()
        assert not file.takes(late)
        assert file.takes(rows[0])
        fresh = DataFile("name", InMemory(), rows[0].schema, "none", ())
        assert fresh.takes(late)
        fresh.write(late)
        fresh.flush()
        assert fresh.takes(late)
        fresh.write(late)
        metadata = fresh.finish().metadata
        chunks = [metadata.row_group(0).column(number) for number in range(metadata.num_columns)]
        path = "p.x.list.element" if part["m"] is None else "p.m.key_value.value"
        assert {one.path_in_schema for one in chunks if one.statistics is None or not one.statistics.has_min_max} >= {
            path
        }
        assert next(one for one in chunks if one.path_in_schema == "id").statistics.max == 3


def test_storage_that_keeps_less_than_was_written_is_noticed() -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    file = DataFile("name", InMemory(lost=1), rows.schema, "none", ())
    file.write(rows)
    with pytest.raises(OSError, match="bytes where it is kept"):
        file.finish()


def test_endless_numbers_decimals_and_bytes_have_no_text_that_all_readers_share() -> None:
    found = stats(
        {
            "endless": pa.array([1.0, math.inf]),
            "money": pa.array([Decimal("1.50")]).take(pa.array([0, 0])),
            "raw": pa.array([b"a", b"b"]),
            "flag": pa.array([True, False]),
        }
    )
    assert found["minValues"] == {"endless": 1.0}
    assert found["maxValues"] == {}


def test_a_column_of_nulls_has_a_count_and_nothing_else() -> None:
    found = stats({"id": pa.array([None, None], pa.int64())})
    assert (found["nullCount"], found["minValues"], found["maxValues"]) == ({"id": 2}, {}, {})


def test_nested_columns_and_those_beyond_the_indexed_ones_are_left_out() -> None:
    columns = {"list": pa.array([[1]]), "a": pa.array([1]), "b": pa.array([2])}
    assert stats(columns, indexed=2)["minValues"] == {"a": 1}
    assert stats(columns, indexed=-1)["minValues"] == {"a": 1, "b": 2}


def test_a_column_and_a_field_of_the_same_path_are_not_taken_for_each_other() -> None:
    columns = {
        "a.b": pa.array([1, 2, 3]),
        "a": pa.array([{"b": 100}, {"b": 200}, {"b": 300}]),
        "c": pa.array([7, 8, 9]),
    }
    for order in (["a.b", "a", "c"], ["a", "c", "a.b"]):
        found = stats({name: columns[name] for name in order})
        assert found["minValues"] == {"a.b": 1, "c": 7}
        assert found["maxValues"] == {"a.b": 3, "c": 9}


def test_times_are_told_with_their_microseconds() -> None:
    moment = dt.datetime(2026, 3, 29, 0, 59, 59, 999999)
    zoned = pa.array([moment.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    found = stats({"local": pa.array([moment], pa.timestamp("us")), "zoned": zoned})
    assert found["maxValues"] == {"local": "2026-03-29T00:59:59.999999", "zoned": "2026-03-29T00:59:59.999999Z"}


def test_dates_and_times_beyond_what_python_can_tell_are_left_out() -> None:
    found = stats(
        {
            "id": pa.array([1, 2]),
            "early": pa.array([-800_000, 0], pa.int32()).cast(pa.date32()),
            "late": pa.array([0, 4_000_000], pa.int32()).cast(pa.date32()),
            "at": pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    assert (found["minValues"], found["maxValues"]) == ({"id": 1}, {"id": 2})
    assert found["nullCount"] == {"id": 0, "early": 0, "late": 0, "at": 0}


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=2 * PREFIX), min_size=1, max_size=5))
def test_cut_texts_still_enclose_every_value(texts: list[str]) -> None:
    found = stats({"text": pa.array(texts)})
    low, high = found["minValues"].get("text"), found["maxValues"].get("text")
    for text in texts:
        assert low is None or low.encode() <= text.encode()
        assert high is None or high.encode() >= text.encode()


def test_partition_values_are_text_as_the_protocol_writes_it() -> None:
    values = ("a b", -7, True, dt.date(2026, 1, 2), None)
    told = partition_values(values, ("s", "i", "b", "d", "n"))
    assert told == {"s": "a b", "i": "-7", "b": "true", "d": "2026-01-02", "n": None}


def test_features_that_ask_more_of_a_writer_are_known() -> None:
    asked = ["appendOnly", "timestampNtz", "rowTracking", "somethingNew"]
    assert unsupported(7, asked) == ["it has the feature rowTracking", "it has the feature somethingNew"]
    assert unsupported(5, ()) == []
    assert [unsupported(version, ()) for version in (6, 8)] == [
        ["it needs writers of version 6"],
        ["it needs writers of version 8"],
    ]


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────

NESTED = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.int8()))])


@pytest.mark.parametrize(
    ("given_", "table", "fits"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 4), True),
        (pa.decimal128(9, 2), pa.decimal128(9, 4), False),
        (pa.string(), pa.large_string(), True),
        (pa.timestamp("us", "Europe/Warsaw"), pa.timestamp("us", "UTC"), True),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us"), pa.timestamp("ns"), False),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), True),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), False),
        (NESTED, NESTED, True),
        (NESTED, pa.struct([pa.field("y", pa.list_(pa.int8())), pa.field("x", pa.int32())]), False),
    ],
)
def test_a_type_fits_only_where_no_value_can_be_lost(given_: pa.DataType, table: pa.DataType, fits: bool) -> None:
    assert widens(given_, table) is fits


def test_all_differences_are_named_at_once() -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    with pytest.raises(SchemaMismatch) as caught:
        fit(pa.schema([("name", pa.int64()), ("extra", pa.int8())]), table, "the table")
    for said in ("column 'name' is int64", "no column 'extra'", "'id' may not be null"):
        assert said in str(caught.value)


def test_rows_take_the_order_and_the_types_of_the_table() -> None:
    table = pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("c", pa.int8())])
    rows = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int8())})
    target = fit(rows.schema, table, "the table")
    assert adapt(rows, target, "the table").schema == pa.schema([("a", pa.int64()), ("b", pa.large_string())])


def test_a_new_table_may_hold_nulls_everywhere_and_keeps_times_in_utc() -> None:
    spark = pa.schema([pa.field("t", pa.timestamp("us", "Asia/Tokyo"), nullable=False, metadata={"a": "b"})])
    assert plain(spark).equals(pa.schema([pa.field("t", pa.timestamp("us", "UTC"))]), check_metadata=True)


def test_parts_that_may_not_be_null_are_found_inside() -> None:
    inside = pa.list_(pa.struct([pa.field("x", pa.int32(), nullable=False)]))
    values = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
    assert strict_inside(pa.schema([("a", inside), ("b", NESTED), ("c", values)])) == ["a", "c"]


def test_a_changed_table_is_told_from_one_that_only_grew() -> None:
    table = pa.schema([("id", pa.int64()), ("name", pa.string())])
    written = types_of(table)
    assert changed(written, table.append(pa.field("more", pa.int8()))) is None
    assert "more" in str(changed(written, table.append(pa.field("more", pa.int8(), nullable=False))))
    assert "name" in str(changed(written, pa.schema([("id", pa.int64())])))


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None]), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_every_row_is_in_the_part_of_its_values_and_in_order(rows: list[tuple[Any, Any, bool]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.string()),
            pa.array([row[1] for row in rows], pa.int8()),
            pa.array([row[2] for row in rows]),
            pa.array(range(len(rows))),
        ],
        names=["text", "number", "flag", "row"],
    )
    parts = dict(by_partition(batch, ["text", "number", "flag"]))
    assert len(parts) == len(set(rows))
    for values, part in parts.items():
        assert part.column("row").to_pylist() == [number for number, row in enumerate(rows) if row == values]


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_marker_leads_to_its_file_and_token() -> None:
    scope = WriterScope(SinkScope("job", "my.sink", 12), 3, 0, 7, 0)
    token = "0123456789abcdef0123"
    name = data_name(scope, token, 4)
    assert token_of(f"file:///lake/{name}") == token
    marker = marker_name(scope.sink, name)
    assert parse_marker(marker.rpartition("/")[2]) == (12, name, token)
    assert parse_marker("g1-something-else") is None
    assert token_of("part-00000-2f0c.snappy.parquet") is None
    assert all(letter.isalnum() or letter in "-." for letter in name), "a Delta log would have to escape it"


# ── what people see ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_secret_is_shown() -> None:
    options = {"AWS_SECRET_ACCESS_KEY": "hush-hush", "uri": "postgresql://me:t0p-secret@db/x", "region": "eu"}
    sink = DeltaSink("s3://user:t0p-secret@lake/orders?sig=abc", storage_options=options)
    iceberg = IcebergSink("a.b", properties=options)
    said = str(translated(RuntimeError("PUT with hush-hush at postgresql://me:t0p-secret@db/x"), "table", options))
    for text in (said, repr(sink), sink.describe(), str(sink.link("u")), repr(iceberg), iceberg.describe()):
        assert "hush-hush" not in text
        assert "t0p-secret" not in text
        assert "abc" not in text
    assert without_secrets("https://a:b@c/", {}) == "https://a:***@c/"
    assert public_address("/a/b") == "/a/b"


def test_faults_are_told_apart() -> None:
    assert isinstance(translated(OSError(28, "No space left on device"), "t", {}), StorageFull)
    assert isinstance(translated(RuntimeError("Server returned 403 Forbidden"), "t", {}), AccessDenied)
    assert translated(RuntimeError("connection reset"), "t", {}).retryable


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DeltaSink("gs://bucket/table"), "cannot write to gs://"),
        (lambda: DeltaSink("/x", compression="zip"), "cannot compress"),
        (lambda: IcebergSink("orders"), "namespace"),
        (lambda: IcebergSink("a..b"), "namespace"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_when_it_is_described(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize(
    ("package", "sink", "extra"),
    [
        ("deltalake", DeltaSink("/nowhere"), "delta"),
        ("pyiceberg.catalog", IcebergSink("a.b"), "iceberg"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, sink: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"penstock.sinks.tables.{extra}", raising=False)
    for use in (lambda: sink.open_committer(SinkScope("j", "u", 1)), lambda: sink.check(None, "u")):
        with pytest.raises(MissingExtra) as caught:
            use()
        assert f"penstock[{extra}]" in caught.value.to_do


def test_a_fork_gets_a_table_of_its_own() -> None:
    assert DeltaSink("s3://lake/orders/").redirected("-fork").path == "s3://lake/orders-fork"
    assert IcebergSink("shop.orders").redirected("_fork").table == "shop.orders_fork"
