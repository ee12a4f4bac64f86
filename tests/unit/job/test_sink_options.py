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
from penstock.engine.relay import fitted
from penstock.errors import ConfigurationError, GuaranteeError, SchemaMismatch
from penstock.job.sink_options import SINKS, arguments_of, parse_options, sink_class
from penstock.job.stream_sink import StreamSink

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
    signature = inspect.signature(sink_class(name))
    assert list(arguments_of(sink_class(name))) == [parameter.lower() for parameter in signature.parameters]
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
    sink = parse_options({**given, "key": "id, day", "options.sslmode": "require"})["sink"]
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
    assert travelled.streamWriter(t.StructType().add("value", "string"), False) is not None


def test_kafka_takes_its_columns_as_its_writer_wants_them() -> None:
    sink = parse_options(KAFKA)["sink"]
    schema = t.StructType().add("Value", "string").add("more", "int").add("key", "binary").add("partition", "smallint")
    fit = sink.fit(schema)
    given = pa.RecordBatch.from_pydict(
        {"Value": ["a", None], "more": [1, 2], "key": [b"k", b"l"], "partition": pa.array([0, 1], pa.int16())}
    )
    rows = fit(given)
    assert rows.schema.names == ["value", "key", "partition"]
    assert rows.schema.types == [pa.binary(), pa.binary(), pa.int32()]
    assert rows.column("value").to_pylist() == [b"a", None]
    assert fitted(fit, schema) == rows.schema


@pytest.mark.parametrize(
    ("options", "schema", "fits"),
    [
        ({"sink": "files", "path": "/out"}, "n int, t string", True),
        ({"sink": "files", "path": "/out"}, "n int, list array<string>, m map<string, int>", True),
        ({"sink": "files", "path": "/out", "format": "json"}, "n int", False),
        ({"sink": "files", "path": "/out", "format": "csv"}, "n int", False),
        ({"sink": "mysql", "table": "t", "user": "u"}, "n int, t string", True),
        ({"sink": "mysql", "table": "t", "user": "u"}, "n int, list array<string>", False),
        ({"sink": "delta", "path": "/out"}, "n int, t string", True),
        ({"sink": "kafka", "servers": "s:1", "topic": "t"}, "n int", False),
    ],
)
def test_columns_that_spark_would_have_to_change_are_refused(options: dict[str, str], schema: str, fits: bool) -> None:
    columns = t.StructType()
    for part in schema.replace("map<string, int>", "map<string;int>").split(", "):
        name, _, kind = part.partition(" ")
        columns.add(name, kind.replace(";", ","))
    sink = parse_options({"uid": "out", "checkpointLocation": "/c", **options})["sink"]
    if fits:
        assert fitted(sink.fit(columns), columns).names == columns.names
    else:
        with pytest.raises(SchemaMismatch):
            fitted(sink.fit(columns), columns)
