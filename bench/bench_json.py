"""Ways to parse JSON in one Spark session, without Kafka: processor seconds for a million rows, of Java and Python.

Each way takes the 100-byte rows of the other benchmarks. `fields`: all four become columns. `half`: every second row
goes on as JSON, as in the task beside Flink (`json_ways.py`). Every second round goes the other way round.

    python bench/bench_json.py --rows 1000000 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from json_ways import SCHEMA, WAYS, text
from kafka_load import messages
from neighbours import Neighbours, used_by
from penstock import Json, parse
from penstock.spark.session import session
from tasks import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent.absolute()
console = Console()
Way = Callable[["DataFrame"], "DataFrame"]


def main() -> None:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rows = Path(folder) / "rows"
        rows.mkdir()
        cores = len(os.sched_getaffinity(0))
        for part in range(cores):
            share = options.rows // cores
            pq.write_table(pa.Table.from_batches([messages(part * share, share)]), rows / f"{part}.parquet")
        # Spark's workers import the ways from here.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        spark = session("bench", conf={"spark.master": f"local[{cores}]"}, jars=[], local_storage=True)
        try:
            results = {
                name: measure(spark, rows, ways, options) for name, ways in WORKS.items() if name in options.work
            }
        finally:
            spark.stop()
    options.results.parent.mkdir(exist_ok=True)
    options.results.write_text(json.dumps({"rows": options.rows, "ways": results}, indent=2) + "\n")
    show(results)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rows", type=int, default=1_000_000)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    made.add_argument("--results", type=Path, default=HERE / "results" / "json.json")
    return made


def measure(
    spark: SparkSession, rows: Path, ways: Mapping[str, Way], options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """The rounds of each way; one before them warms up and does not count."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            frame = ways[name](spark.read.parquet(str(rows)))
            with Neighbours() as others:
                before = used_by([os.getpid()])
                frame.write.format("noop").mode("overwrite").save()
                seconds = (used_by([os.getpid()]) - before) * 1e6 / options.rows
            if number:
                found[name].append({"cpu_seconds_per_million_rows": seconds, "other_cores": round(others.cores, 2)})
                console.print(f"  {name}: {seconds:.2f} s{others.remark}")
    return found


def show(results: Mapping[str, Mapping[str, list[dict[str, float]]]]) -> None:
    for work, ways in results.items():
        table = Table("way", "CPU seconds per million rows", "of from_json's", title=work)
        seconds = {name: [one["cpu_seconds_per_million_rows"] for one in rounds] for name, rounds in ways.items()}
        first = statistics.median(next(iter(seconds.values())))
        for name, own in seconds.items():
            median = statistics.median(own)
            table.add_row(name, f"{median:.2f} ({min(own):.2f} to {max(own):.2f})", f"{median / first:.2f}")
        console.print(table)


def _fields_by(one: Callable[[str, str], str]) -> Way:
    return lambda rows: rows.selectExpr(*(f"{one(name, kind)} AS {name}" for name, kind in FIELDS.items()))


def _by_variant(rows: DataFrame) -> DataFrame:
    variants = rows.selectExpr("parse_json(cast(value AS string)) AS v")
    return variants.selectExpr(*(f"variant_get(v, '$.{name}', '{kind}') AS {name}" for name, kind in FIELDS.items()))


def _by_tuple(rows: DataFrame) -> DataFrame:
    texts = rows.select(f.json_tuple(text(), *FIELDS).alias(*FIELDS))
    return texts.select(*(f.col(name).cast(kind).alias(name) for name, kind in FIELDS.items()))


WORKS: Mapping[str, Mapping[str, Way]] = {
    "fields": {
        "from_json": lambda rows: rows.select(f.from_json(text(), SCHEMA).alias("row")).select("row.*"),
        "penstock.parse": lambda rows: parse(rows, Json(SCHEMA)).select("value.*"),
        "get_json_object": _fields_by(
            lambda name, kind: f"cast(get_json_object(cast(value AS string), '$.{name}') AS {kind})"
        ),
        "json_tuple": _by_tuple,
        "parse_json, variant_get": _by_variant,
    },
    "one field": {
        "from_json": lambda rows: rows.select(f.from_json(text(), "id bigint").alias("row")).select("row.*"),
        "penstock.parse": lambda rows: parse(rows, Json("id bigint")).select("value.*"),
        "get_json_object": lambda rows: rows.selectExpr(
            "cast(get_json_object(cast(value AS string), '$.id') AS bigint)"
        ),
    },
    "half": WAYS,
}


if __name__ == "__main__":
    main()
