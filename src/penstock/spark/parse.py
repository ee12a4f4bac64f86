"""Parses a column of texts into typed fields: in columns, by Arrow, wherever that gives what Spark's parser gives.

Arrow reads a batch of documents in one call, for less than Spark's parser takes row by row. It knows nothing of Spark's
rules for bad and odd documents, so it reads only batches in which every text is plain; `from_json` reads the others in
the same plan. A batch with one bad text is read again in pieces, so that few rows take the slow way.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_PIECE = 500  # rows that one bad text sends to Spark's parser
_BLANKS = " \t\r\n"  # what JSON allows around a document
_SHORT_TIME = r"\d[T ]\d\d(:\d\d)?[Z+-]"  # a zone and no seconds: null to Spark, a time to Arrow
_UTC = {"UTC", "Etc/UTC", "GMT", "Z", "+00:00"}
#: Types that Arrow reads by Spark's rules, by both names.
_PLAIN = {"boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"}
_PLAIN |= {"float": "float", "double": "double", "string": "string"}


@dataclass(frozen=True)
class Json:
    """One JSON object in each row. `schema` is what `from_json` takes: a `StructType`, or its fields as text, such as
    `"id bigint, at timestamp"`. Fields that it does not name are skipped."""

    schema: StructType | str


def parse(frame: DataFrame, format: Json, column: str = "value") -> DataFrame:
    """`frame`, batch or streaming, with the texts of `column` (string or binary) parsed into a struct of the same name.

    The rows are those of `frame.withColumn(column, from_json(col(column).cast("string"), schema))`: a missing field is
    null, a text that does not parse gives null fields, NULL stays NULL. Other columns, the order of rows and their
    partitions do not change. A filter or a projection on the result does not parse a row twice."""
    from pyspark.sql import functions as f

    quoted = f.col("`{}`".format(column.replace("`", "``")))
    by_spark = f.from_json(quoted.cast("string"), format.schema)
    before, after = (field.dataType for field in frame.select(quoted, by_spark).schema)
    if before.typeName() not in ("string", "binary"):
        raise ConfigurationError(
            f"Column {column!r} to parse is of type {before.simpleString()}.",
            to_do="name a column of strings or bytes, such as the value of a Kafka record.",
        )
    try:
        if not hasattr(f, "arrow_udf"):  # Spark has it from 4.1 on
            raise KeyError("arrow_udf")
        types = arrow_types(after, utc=frame.sparkSession.conf.get("spark.sql.session.timeZone") in _UTC)
    except KeyError:
        return frame.withColumn(column, by_spark)
    import pyarrow as pa

    def parse_json(texts: Any) -> Any:
        return rows_of(texts, *types)

    parse_json.__annotations__ = {"texts": pa.Array, "return": pa.Array}  # how Spark tells what kind of function it is
    # To Spark it is not deterministic, although it is: otherwise a filter on a field parses once more, for itself.
    by_arrow = f.arrow_udf(parse_json, after).asNondeterministic()
    return frame.withColumn(column, f.coalesce(by_arrow(quoted), by_spark))


def arrow_types(kind: DataType, *, utc: bool) -> tuple[pa.StructType, pa.StructType]:
    """As what Arrow reads documents of a type of Spark's, and what that is cast to. `KeyError` for a type that
    `from_json` alone reads by Spark's rules. Dates and times are read as texts, because Arrow takes a number for a date
    and a time without a zone for UTC, which is Spark's rule only where the session is in UTC."""
    import pyarrow as pa

    times = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    read = {**dict.fromkeys(times, pa.string()), **({"timestamp": times["timestamp"]} if utc else {})}
    return _arrow_type(kind, read), _arrow_type(kind, times)


def _arrow_type(kind: DataType, times: Mapping[str, pa.DataType]) -> pa.DataType:
    import pyarrow as pa
    from pyspark.sql.types import ArrayType, DecimalType, StructType

    if isinstance(kind, StructType):
        if not kind.names or len(set(kind.names)) < len(kind.names):
            raise KeyError(kind.simpleString())
        return pa.struct([(field.name, _arrow_type(field.dataType, times)) for field in kind])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.elementType, times))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    name = kind.simpleString()
    return times[name] if name in times else pa.type_for_alias(_PLAIN[name])


def rows_of(texts: pa.Array, reading: pa.StructType, kind: pa.StructType) -> pa.Array:
    """A struct of type `kind` for each text, read as type `reading`. Null: the text is null, or left to Spark."""
    import pyarrow as pa

    rows = _read(texts, reading, kind)
    if rows is not None:
        return rows
    if len(texts) <= _PIECE:
        return pa.nulls(len(texts), kind)
    pieces = [texts.slice(first, _PIECE) for first in range(0, len(texts), _PIECE)]
    return pa.concat_arrays([rows_of(piece, reading, kind) for piece in pieces])


def _read(texts: pa.Array, reading: pa.StructType, kind: pa.StructType) -> pa.Array | None:
    """None unless Arrow reads every text, each as one document.

    Arrow's reader does not know where a row ends; this is why no document can reach from one row into another. Every
    text begins with a brace and ends with one, and a line break follows it. Inside a string a line break is an error.
    Outside of strings no document has `}` and `{` with nothing but blanks between them. So a row holds whole documents,
    one at least, and if there are as many documents as rows, each row holds one. (A batch that begins with `null`
    crashes the reader; none does.)"""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json

    parsing = json.ParseOptions(explicit_schema=pa.schema(list(reading)), unexpected_field_behavior="ignore")
    try:
        # The cast from bytes checks that they are UTF-8.
        trimmed = pc.ascii_trim(texts.cast(pa.binary()).cast(pa.string()), _BLANKS)
        plain = pc.fill_null(trimmed, _constant(b"{}"))
        if not pc.all(pc.and_(pc.starts_with(plain, "{"), pc.ends_with(plain, "}"))).as_py():
            return None
        if "timestamp[" in str(kind) and pc.any(pc.match_substring_regex(plain, _SHORT_TIME)).as_py():
            return None
        lines = pc.binary_join_element_wise(plain, _constant(b""), _constant(b"\n")).buffers()[2]
        if lines is None or not lines.size:
            return pa.nulls(len(texts), kind)
        options = json.ReadOptions(use_threads=False, block_size=lines.size + 1)
        table = json.read_json(pa.BufferReader(lines), options, parsing).cast(pa.schema(list(kind)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(texts):
        return None
    columns = [column.combine_chunks() for column in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=texts.is_null())


def _constant(text: bytes) -> pa.StringScalar:
    """From memory: to make one of Python's object, Arrow imports pandas, see `task.answer_of`."""
    import pyarrow as pa

    ends = struct.pack("=2i", 0, len(text))
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])[0]
