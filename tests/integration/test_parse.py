"""`parse` beside `from_json`, value by value: on texts chosen for their oddity, and on texts made at random."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as f

from penstock import Checkpoints, Job, Json, KafkaSink, KafkaSource, parse
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.run_job import Kafka, Watched

#: Texts in which field `v` is of the type, or nearly.
NUMBERS = [
    "0", "-0.0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1.0", "1.5", "1e2",
    "1E-2", "1e400", "-1e400", "5e-324", "1e-400", "3.4028235e38", "3.5e38", "0.1", "123456789.123456789", "16777217",
    "9007199254740993", "01", "+1", ".5", "5.", "0x1", "NaN", "-Infinity", "Infinity", "INF", "nan", "1.25", "1.255",
    "12345678.91", "123456789.1", "99999999.995", "true", "false", "null",
]  # fmt: skip
STRINGS = [
    "1", " 1", "1.5", "NaN", "Infinity", "true", "", "x", "\u00e9", "\U0001f600", "\u0000", "\u2028",
    "a\"b\\c/\b\f\n\r\t", "+1.5", "1e1", ".5", "5.", "1,000", "1.25",
]  # fmt: skip
TIMES = [
    "2026-01-02", "2026-1-2", "2026-02-30", "0000-01-01", "0001-01-01", "1500-02-29", "1582-10-10", "9999-12-31",
    "10000-01-01", "-0001-01-01", "+12026-01-02", " 2026-01-02 ", "2026-01-02Z", "2026", "2026-01", "2026-01-02T",
    "2026-01-02T03", "2026-01-02T03:04", "2026-01-02 03:04:05", "2026-01-02T03:04:05", "2026-01-02T03:04:05.1",
    "2026-01-02T03:04:05.123456", "2026-01-02T03:04:05.1234567", "2026-01-02T03:04:05.123456789", "2026-01-02T03:04:60",
    "2026-01-02T24:00:00", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05z", "2026-01-02T03:04:05+01:00",
    "2026-01-02T03:04:05+0130", "2026-01-02T03:04:05-08", "2026-01-02T03:04:05 UTC", "2026-01-02T03Z",
    "2026-01-02 03:04Z", "2026-01-02T03:04+01:00", "2026-01-02T03:04:05-00:00", "2026-03-29T02:30:00",
    "2026-10-25T02:30:00", "2026-10-25T02:30:00+02:00", "20260102T030405Z", "1883-11-18T12:00:00",
    "1883-11-18T12:00:00Z", "now", "epoch", "today",
]  # fmt: skip
SHAPES = ["{}", "[]", '{"x":1}', "[1]", "[null]", '["a",1]', '{"x":{"y":[1,{}]},"x":2}', '[{"x":1},null,{"x":"1"},{}]']
VALUES = [*NUMBERS, *map(json.dumps, [*STRINGS, *TIMES]), *SHAPES]
#: Whole rows.
ROWS = [
    None, "", " ", "\n", "null", "true", "3", '"text"', "[]", "[{}]", '[{"v":1}]', '[{"v":1},{"v":2}]', "{", "}", "{}",
    " {} ", '{"v":1', '{"v":1}}', '{"v":1}{"v":2}', '{"v":1}\n{"v":2}', '{"v":1} x', '{"v":1}\n', '\t{"v"\n:\r\n1}',
    '{"v":1,}', "{'v':1}", "{v:1}", '{"v":1,"v":2}', '{"v":1,"v":null}', '{"V":1}', '{"other":1}',
    '{"other":1,"other":2,"v":1}', '{"v":"a\nb"}', '{"v":"\\ud800"}', '{"v":"\\ud83d\\ude00"}', '{"v":"\\u0000"}',
    '{"v":"\\x"}', '/* */{"v":1}', '{"v":1}\x00', '\ufeff{"v":1}', '{"":1}', '{"v":' + "[" * 50 + "]" * 50 + "}",
    '{"other":' + '{"a":' * 50 + "1" + "}" * 51, '{"other":1e999,"v":1}', '{"v":1}//', '{"v":1}\x0c',
    '{"other":NaN,"v":1}', '{"other":01,"v":1}',
]  # fmt: skip
KINDS = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "decimal(30,2)", "decimal(38,18)",
    "date", "timestamp", "timestamp_ntz", "array<bigint>", "array<string>", "struct<x:bigint>",
    "array<struct<x:bigint>>", "struct<x:struct<y:array<date>>>", "map<string,bigint>", "binary", "variant",
]  # fmt: skip


Compared = tuple[Any, Any, Any]


def compared(session: SparkSession, texts: Sequence[str | bytes | None], *schemas: str) -> dict[str, list[Compared]]:
    """For each schema every text, with what `from_json` and what `parse` make of it."""
    kind = "binary" if any(isinstance(text, bytes) for text in texts) else "string"
    rows = session.createDataFrame(list(enumerate(texts)), f"number int, value {kind}").coalesce(1)
    for number, schema in enumerate(schemas):
        rows = rows.withColumn(f"spark{number}", f.from_json(f.col("value").cast("string"), schema))
        rows = parse(rows.withColumn(f"own{number}", f.col("value")), Json(schema), column=f"own{number}")
    names = [name for number in range(len(schemas)) for name in (f"spark{number}", f"own{number}")]
    found = rows.selectExpr("number", "value", *(f"cast({name} AS string)" for name in names)).collect()
    assert [(row.number, row.value) for row in found] == list(enumerate(texts))
    return {
        schema: [(row.value, row[f"spark{number}"], row[f"own{number}"]) for row in found]
        for number, schema in enumerate(schemas)
    }


def differences(session: SparkSession, texts: Sequence[str | bytes | None], *schemas: str) -> dict[str, list[Compared]]:
    """Those that differ."""
    found = compared(session, texts, *schemas).items()
    return {schema: unlike for schema, rows in found if (unlike := [row for row in rows if row[1] != row[2]])}


@pytest.fixture(params=["1", "20000"], ids=["alone", "in batches"])
def batches(session: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Alone, every text proves itself; in a batch, one bad text decides for its neighbours."""
    with setting(session, "spark.sql.execution.arrow.maxRecordsPerBatch", request.param):
        yield


@contextmanager
def setting(session: SparkSession, key: str, value: str) -> Iterator[None]:
    before = session.conf.get(key)
    session.conf.set(key, value)
    yield
    session.conf.set(key, str(before))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.usefixtures("batches")
def test_every_value_is_that_of_from_json(session: SparkSession, zone: str) -> None:
    with setting(session, "spark.sql.session.timeZone", zone):
        texts = [*(f'{{"v":{value}}}' for value in VALUES), *ROWS]
        assert differences(session, texts, *(f"v {kind}" for kind in KINDS)) == {}


#: Minus zero without a point, numbers that are not JSON, and what is beyond Spark's limits.
DIFFERENT = {
    "v double": [
        ('{"v":-0}', "{0.0}", "{-0.0}"),
        ('{"v":Inf}', "{NULL}", "{Infinity}"),
        ('{"v":-NaN}', "{NULL}", "{NaN}"),
    ],
    "v timestamp": [
        ('{"v":"2026-01-02T03:04:05+19:00"}', "{NULL}", "{2026-01-01 08:04:05}"),
    ],
    "v string": [('{"v":"a","other":' + "[" * 1001 + "]" * 1001 + "}", "{NULL}", "{a}")],
}


def test_these_differences_are_known(session: SparkSession) -> None:
    """docs/how-to/parse.md lists them."""
    with setting(session, "spark.sql.execution.arrow.maxRecordsPerBatch", "1"):
        found = {
            schema: compared(session, [text for text, _, _ in rows], schema)[schema]
            for schema, rows in DIFFERENT.items()
        }
    assert str(found).lower() == str(DIFFERENT).lower()  # how Spark writes null depends on its version


def test_bytes_that_are_no_utf8_are_read_as_spark_reads_them(session: SparkSession) -> None:
    texts = [b'{"v":"a"}', b'{"v":"\xff"}', b'{"v":"\xc3"}', b'{"\xff":1,"v":"b"}', b"\xff", None, b""]
    for size in ("1", "20000"):
        with setting(session, "spark.sql.execution.arrow.maxRecordsPerBatch", size):
            assert differences(session, texts, "v string") == {}


SCHEMA = (
    "i int, l bigint, d double, s string, b boolean, m decimal(20,4), day date, at timestamp,"
    " n struct<l: bigint, a: array<struct<s: string, at: timestamp>>>, a array<array<double>>"
)
NAMES = ["i", "l", "d", "s", "b", "m", "day", "at", "n", "a"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DAYS = st.dates().map(str)
MOMENTS = st.datetimes().map(lambda at: f"{at.isoformat()}Z")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT | DAYS | MOMENTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | TEXT, inner, max_size=3),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "d": st.floats() | st.integers(-(2**60), 2**60),
        "s": TEXT,
        "b": st.booleans(),
        "m": st.decimals(-(10**15), 10**15, places=4).map(str),
        "day": DAYS,
        "at": MOMENTS,
        "n": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "l": st.integers(0, 9),
                "a": st.lists(st.none() | st.fixed_dictionaries({}, optional={"s": TEXT, "at": MOMENTS}), max_size=3),
                "extra": ANYTHING,
            },
        ),
        "a": st.lists(st.lists(st.floats(), max_size=2), max_size=2),
        "extra": ANYTHING,
    },
)
LAID_OUT = st.builds(
    lambda document, indent, escaped, end: json.dumps(document, indent=indent, ensure_ascii=escaped) + end,
    FITTING | st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4),
    st.none() | st.integers(0, 2),
    st.booleans(),
    st.sampled_from(["", "", "\n", " ", "x", "}"]),
)


@given(st.lists(LAID_OUT | st.none() | st.text(max_size=5), min_size=20, max_size=80))
@settings(max_examples=25, deadline=None)
@pytest.mark.usefixtures("batches")
def test_documents_made_at_random_are_read_as_by_from_json(session: SparkSession, texts: list[str | None]) -> None:
    assert differences(session, texts, SCHEMA) == {}


def test_a_bad_row_among_many_gives_null_fields_and_changes_no_other(session: SparkSession) -> None:
    texts: list[str | None] = [f'{{"l":{number},"s":"{number}"}}' for number in range(3_000)]
    texts[1_234], texts[2_000] = "bad", None
    [found] = compared(session, texts, "l bigint, s string").values()
    assert [own for _, _, own in found] == [spark for _, spark, _ in found]
    assert str(found[1_234][2]).lower() == "{null, null}"
    assert found[2_000][2] is None
    assert found[1_235][2] == "{1235, 1235}"


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_a_filter_on_a_field_does_not_parse_again(session: SparkSession) -> None:
    frame = session.createDataFrame([('{"l":1}', 1), ('{"l":2}', 2)], "value string, n int")
    even = parse(frame, Json("l bigint, s string")).select("n", "value.*").where("l % 2 = 0")
    assert plan_of(even).count("ArrowEvalPython") == 1
    assert even.collect() == [(2, 2, None)]


def test_what_arrow_cannot_read_is_read_by_spark_alone(session: SparkSession) -> None:
    frame = session.createDataFrame([('{"m":{"k":1}}',)], "value string")
    rows = parse(frame, Json("m map<string, bigint>"))
    assert "ArrowEvalPython" not in plan_of(rows)
    assert rows.collect() == [(({"k": 1},),)]


def test_any_column_is_parsed_under_its_own_name(session: SparkSession) -> None:
    frame = session.createDataFrame([(1, '{"a.b":1}', "x")], "before int, `the.``text` string, after string")
    rows = parse(frame, Json("`a.b` bigint not null"), column="the.`text")
    assert rows.columns == frame.columns
    assert rows.collect() == [(1, (1,), "x")]
    assert rows.schema["the.`text"].dataType.simpleString() == "struct<a.b:bigint>"


def test_a_column_without_text_is_refused(session: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="'id' to parse is of type bigint"):
        parse(session.range(1), Json("a int"), column="id")


def test_a_job_parses_what_kafka_gives_and_keeps_the_record(
    session: SparkSession, kafka: Kafka, storage: str, running: type[Watched]
) -> None:
    """Everything else of a record comes out as it went in, in every epoch."""
    source, target = kafka.topic(2), kafka.topic(1)
    values = [json.dumps({"id": number, "name": f"n{number}"}) for number in range(60)]
    values[7] = "bad"
    kafka.send(source, [(f"k{number}", value) for number, value in enumerate(values)], spread=2)
    job = Job("parse", spark=session, checkpoints=Checkpoints(storage=storage))
    records = job.read(KafkaSource(source, servers=kafka.servers, max_offsets_per_epoch=20), uid="in")
    rows = parse(records, Json("id bigint, name string"))
    assert rows.columns == records.columns
    written = f.to_json(f.struct("value", "topic", "partition", "offset"), {"ignoreNullFields": "false"})
    job.write(rows.select("key", written.alias("value")), KafkaSink(target, servers=kafka.servers), uid="out")
    with running(job):
        kafka.read_until(target, len(values))
    found = {(key or b"").decode(): json.loads(value or b"null") for key, value in kafka.read(target)}
    assert found == {
        f"k{number}": {
            "value": {"id": None, "name": None} if number == 7 else {"id": number, "name": f"n{number}"},
            "topic": source,
            "partition": number % 2,
            "offset": number // 2,
        }
        for number in range(len(values))
    }
