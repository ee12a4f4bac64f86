"""Ways to read JSON, keep every second row and write JSON, from what one writes first to what takes least: for the page
docs/how-to/throughput.md, which shows them. All give the same rows.

    python bench/bench_flink.py throughput --work json --systems penstock spark --json-way once
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from penstock import Json, parse
from tasks import FIELDS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

SCHEMA = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())


def text() -> Column:
    return f.col("value").cast("string")


def _written(rows: DataFrame) -> DataFrame:
    return rows.select(f.col("account").alias("key"), f.to_json(f.struct(*FIELDS)).alias("value"))


def plain(rows: DataFrame) -> DataFrame:
    """Spark moves the filter below the parsing, and so parses twice what passes it."""
    return _written(rows.select(f.from_json(text(), SCHEMA).alias("row")).select("row.*").where("id % 2 = 0"))


def once(rows: DataFrame) -> DataFrame:
    """A filter does not pass `inline`, so every row is parsed once."""
    return _written(rows.select(f.inline(f.array(f.from_json(text(), SCHEMA)))).where("id % 2 = 0"))


def by_tuple(rows: DataFrame) -> DataFrame:
    """Another parser of Spark's: texts alone, which are cast afterwards."""
    texts = rows.select(f.json_tuple(text(), *FIELDS).alias(*FIELDS))
    typed = texts.select(*(f.col(name).cast(kind).alias(name) for name, kind in FIELDS.items()))
    return _written(typed.where("id % 2 = 0"))


def parsed(rows: DataFrame) -> DataFrame:
    """Parsed by Arrow in a Python worker, filtered and written by Spark."""
    return _written(parse(rows.select("value"), Json(SCHEMA)).select("value.*").where("id % 2 = 0"))


def in_arrow(rows: DataFrame) -> DataFrame:
    """Parsed and written by Arrow, a batch at a time, in a Python worker."""
    return rows.select("value").where("value IS NOT NULL").mapInArrow(_even_rows, "key string, value string")


def _even_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json

    fields = [("id", pa.int64()), ("account", pa.string()), ("amount", pa.int64()), ("pad", pa.string())]
    parsing = json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    reading = json.ReadOptions(use_threads=False, block_size=64 << 20)

    def quoted(column: pa.ChunkedArray) -> pa.ChunkedArray:
        escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        if pc.any(pc.match_substring_regex(escaped, "[\\x00-\\x1f]")).as_py():
            raise ValueError("control characters are not escaped here")
        return pc.fill_null(pc.binary_join_element_wise('"', escaped, '"', ""), "null")

    def number(column: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.fill_null(column.cast(pa.string()), "null")

    for batch in batches:
        texts = batch.column(0).cast(pa.string())
        whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        lines = pc.binary_join(whole, "\n")[0].as_buffer()
        rows = json.read_json(pa.BufferReader(lines), reading, parsing)
        rows = rows.filter(pc.equal(pc.bit_wise_and(rows["id"], 1), 0))
        parts = ['{"id":', number(rows["id"]), ',"account":', quoted(rows["account"])]
        parts += [',"amount":', number(rows["amount"]), ',"pad":', quoted(rows["pad"]), "}", ""]
        made = pa.table({"key": rows["account"], "value": pc.binary_join_element_wise(*parts)})
        yield from made.combine_chunks().to_batches()


WAYS: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "plain": plain,
    "once": once,
    "tuple": by_tuple,
    "parsed": parsed,
    "in-arrow": in_arrow,
}
