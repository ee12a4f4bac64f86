"""The options of `format("penstock")`: from the sinks' signatures, with named errors, as the reference lists them."""

from __future__ import annotations

import inspect
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from scripts.format_options import BEGIN, END, insert_tables, tables

import penstock
from penstock.contracts.sink import TwoPhaseSink
from penstock.engine.checksum import ARROW as NESTED_RULE
from penstock.engine.hashing import RowHashes
from penstock.engine.relay import fitted
from penstock.errors import ConfigurationError, GuaranteeError, SchemaMismatch
from penstock.job.stream_sink import SINKS, StreamSink, arguments_of, parse_options, sink_class

ROOT = Path(__file__).resolve().parents[3]
KAFKA = {"sink": "kafka", "uid": "out", "checkpointLocation": "/c/out", "servers": "localhost:1", "topic": "t"}


def test_the_reference_lists_what_the_code_has() -> None:
    page = (ROOT / "docs/reference/format.md").read_text()
    assert BEGIN in page
    assert END in page
    assert page == insert_tables(page), "run: python scripts/format_options.py docs/reference/format.md"
    for name in SINKS:
        assert f"### `{name}`" in tables()


@pytest.mark.parametrize("name", SINKS)
def test_every_argument_of_a_sink_is_an_option(name: str) -> None:
    parameters = inspect.signature(sink_class(name)).parameters
    texts = [given.lower() for given, parameter in parameters.items() if "Format" not in str(parameter.annotation)]
    assert list(arguments_of(sink_class(name))) == texts
    assert getattr(penstock, SINKS[name]) is sink_class(name)


def test_texts_become_what_the_sink_takes() -> None:
    more = {"PARTITIONS": "3", "create_topic": "true", "options.security.protocol": "PLAINTEXT", "commit_timeout": "5s"}
    arguments = parse_options({**KAFKA, **more, "ledger": "/ledgers", "job": "shop"})
    sink = arguments["sink"]
    assert (sink.topic, sink.partitions, sink.create_topic) == ("t", 3, True)
    assert sink.options == {"security.protocol": "PLAINTEXT"}
    assert (arguments["uid"], arguments["job"], arguments["folder"]) == ("out", "shop", "/ledgers")
    assert arguments["limits"].commit_timeout_seconds == 5


def test_a_mapping_that_is_spread_and_a_sequence() -> None:
    given = {"sink": "postgres", "uid": "out", "checkpointlocation": "/c", "conninfo": "host=db", "table": "rows"}
    sink = parse_options({**given, "key": "id, day", "mode": "upsert", "options.sslmode": "require"})["sink"]
    assert isinstance(sink, penstock.PostgresSink)
    assert tuple(sink.key) == ("id", "day")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topik": "t"}, r"does not know the option 'topik' with the sink 'kafka'"),
        ({"options": "x"}, r"does not know the option 'options'"),
        ({"topic.name": "x"}, r"does not know the option 'topic.name'"),
        ({"sink": None}, "has no option 'sink'"),
        ({"uid": None}, "has no option 'uid'"),
        ({"checkpointLocation": None}, "no place for the ledger"),
        ({"servers": None}, "lacks an option of the sink 'kafka': 'servers'"),
        ({"sink": "kafak"}, "knows no sink 'kafak'"),
        ({"sink": "no.such:Sink"}, "cannot load the sink 'no.such:Sink'"),
        ({"partitions": "many"}, "partitions"),
        ({"uid": "a:b"}, "uid"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    options = {name: text for name, text in {**KAFKA, **change}.items() if text is not None}
    with pytest.raises(ConfigurationError, match=said):
        parse_options(options)


def test_a_sink_that_promises_less_is_refused() -> None:
    redis = {"sink": "redis", "uid": "out", "checkpointLocation": "/c", "url": "redis://localhost", "staged": "false"}
    with pytest.raises(GuaranteeError, match="effectively-once"):
        parse_options(redis)


def test_a_sink_of_ones_own() -> None:
    options = {"sink": "tests.support.memory_sink:MemorySink", "uid": "out", "checkpointLocation": "/c"}
    assert isinstance(parse_options(options)["sink"], TwoPhaseSink)


def test_explain_says_what_this_way_cannot_do() -> None:
    said = StreamSink.explain(KAFKA)
    assert "gives  exactly-once" in said
    for cannot in ("proven by a replay", "no savepoints", "no unaligned"):
        assert cannot in said


@pytest.mark.parametrize("what", ["schema", "writer", "complete"])
def test_only_a_sink_of_streams(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    source = StreamSink(KAFKA)
    calls: dict[str, Any] = {
        "schema": source.schema,
        "writer": lambda: source.writer(t.StructType(), False),
        "complete": lambda: source.streamWriter(t.StructType(), True),
    }
    with pytest.raises(ConfigurationError):
        calls[what]()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1", "the user would see a stack trace of the worker"


def test_a_source_that_travelled_begins_no_epoch() -> None:
    """Spark asks it for a writer to end the epoch with; its checkpoint is not looked at before."""
    travelled: StreamSink = pickle.loads(pickle.dumps(StreamSink(KAFKA)))
    assert travelled.streamWriter(t.StructType().add("value", t.StringType()), False) is not None


def test_kafka_takes_its_columns_as_its_writer_wants_them() -> None:
    sink = parse_options(KAFKA)["sink"]
    kinds = {"Value": t.StringType(), "more": t.IntegerType(), "key": t.BinaryType(), "partition": t.ShortType()}
    schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    fit = sink.fit(schema)
    given = pa.RecordBatch.from_pydict(
        {"Value": ["a", None], "more": [1, 2], "key": [b"k", b"l"], "partition": pa.array([0, 1], pa.int16())}
    )
    rows = fit(given)
    assert rows.schema.names == ["value", "key", "partition"]
    assert rows.schema.types == [pa.binary(), pa.binary(), pa.int32()]
    assert rows.column("value").to_pylist() == [b"a", None]
    assert fitted(fit, schema) == rows.schema


FLAT = {"n": t.IntegerType(), "text": t.StringType()}
NESTED = {"n": t.IntegerType(), "list": t.ArrayType(t.StringType()), "map": t.MapType(t.StringType(), t.LongType())}


@pytest.mark.parametrize(
    ("options", "kinds", "fits"),
    [
        ({"sink": "files", "path": "/out"}, FLAT, True),
        ({"sink": "files", "path": "/out"}, NESTED, True),
        ({"sink": "files", "path": "/out", "format": "json"}, FLAT, False),
        ({"sink": "files", "path": "/out", "format": "csv"}, FLAT, False),
        ({"sink": "mysql", "table": "shop.orders", "user": "u"}, FLAT, True),
        ({"sink": "mysql", "table": "shop.orders", "user": "u"}, NESTED, False),
        ({"sink": "delta", "path": "/out"}, FLAT, True),
        ({"sink": "kafka", "servers": "s:1", "topic": "t"}, FLAT, False),
        ({"sink": "redis", "url": "redis://localhost", "key": "n"}, FLAT, False),
    ],
)
def test_columns_that_spark_would_have_to_change_are_refused(
    options: dict[str, str], kinds: dict[str, t.DataType], fits: bool
) -> None:
    columns = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    sink = parse_options({"uid": "out", "checkpointLocation": "/c", **options})["sink"]
    if fits:
        assert fitted(sink.fit(columns), columns).names == columns.names
    else:
        with pytest.raises(SchemaMismatch):
            fitted(sink.fit(columns), columns)


def test_a_row_is_hashed_as_spark_hashes_it_whatever_the_batches() -> None:
    """The same rows in other batches and another order have the same sum, and another value another one."""
    hashes = RowHashes([True, True], NESTED_RULE)
    kinds = pa.schema([("n", pa.int32()), ("map", pa.map_(pa.string(), pa.int64()))])
    rows: list[dict[str, Any]] = [{"n": 1, "map": [("a", 1), ("b", 2)]}, {"n": None, "map": None}]
    turned: list[dict[str, Any]] = [{"n": None, "map": None}, {"n": 1, "map": [("b", 2), ("a", 1)]}]
    other: list[dict[str, Any]] = [{"n": 1, "map": [("a", 1), ("b", 3)]}, {"n": None, "map": None}]

    def total(rows: list[dict[str, Any]]) -> int:
        return sum(hashes.of(pa.RecordBatch.from_pylist(rows, kinds)).to_pylist()) % (1 << 64)

    assert total(rows) == total(turned) == (total(rows[:1]) + total(rows[1:])) % (1 << 64)
    assert total(rows) != total(other)
