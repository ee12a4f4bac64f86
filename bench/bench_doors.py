"""What an epoch costs through each door of a query that exists already: Spark's own sink in foreachBatch, Penstock's
drop-in there, and `format("penstock")`. In turn, in one session, over short epochs from Kafka to Kafka.

python bench/bench_doors.py --epochs 200 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import penstock
from kafka_load import create_topics, feed
from measures import PARTITIONS
from neighbours import Neighbours
from penstock.supply.jars import jar_set
from penstock.supply.versions import KAFKA_JARS
from rounds import console
from servers import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: A query's rows, its checkpoint and its target give how it is written.
Door = Callable[["DataFrame", str, str, str], "DataStreamWriter"]
_WARM_UP = 50  # epochs of each query that do not count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200, help="of each query, after 50 that do not count")
    parser.add_argument("--rows", type=int, default=200, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "broker") as broker,
        Neighbours() as neighbours,
    ):
        os.environ["PENSTOCK_HOME"] = f"{folder}/home"
        rows = (options.epochs + _WARM_UP) * options.rows
        create_topics(broker.servers, {"in": PARTITIONS})
        feed(broker.servers, "in", rows)
        spark = session()
        rounds: dict[str, list[float]] = {name: [] for name in DOORS}
        for number in range(options.rounds):
            for name in sorted(DOORS, reverse=bool(number % 2)):
                place = f"{folder}/{re.sub('[^a-zA-Z]+', '-', name)}-{number}"
                rounds[name].append(epoch_ms(spark, broker.servers, DOORS[name], place, options.rows))
        spark.stop()
    medians = {name: median(own) for name, own in rounds.items()}
    for name, own in rounds.items():
        beside = f"{medians[name] - medians[DROP_IN]:+.0f} ms beside the drop-in"
        console.print(f"{name}: {medians[name]:.0f} ms an epoch ({min(own):.0f} to {max(own):.0f}), {beside}")
    console.print(f"{options.rounds} rounds of {options.epochs} epochs of {options.rows} rows{neighbours.remark}")


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.jars": ",".join(map(str, jar_set(KAFKA_JARS))),
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.python.daemon.module": "penstock.spark.python_daemon",
    }
    builder = SparkSession.builder.master(f"local[{len(os.sched_getaffinity(0))}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(penstock.StreamSink)
    return spark


def epoch_ms(spark: SparkSession, servers: str, door: Door, place: str, rows: int) -> float:
    """The median over the epochs of one query that reads all there is."""
    target = Path(place).name
    create_topics(servers, {target: PARTITIONS})
    source: Mapping[str, Any] = {
        "kafka.bootstrap.servers": servers,
        "subscribe": "in",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": rows,
    }
    frame = spark.readStream.format("kafka").options(**source).load().select("key", "value")
    query = door(frame, servers, target, place).option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
    return float(median(took[_WARM_UP:]))


def _through_spark(frame: DataFrame, servers: str, target: str, place: str) -> DataStreamWriter:
    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target).save()

    return frame.writeStream.foreachBatch(write)


def _through_drop_in(frame: DataFrame, servers: str, target: str, place: str) -> DataStreamWriter:
    sink = penstock.KafkaSink(target, servers=servers)
    return frame.writeStream.foreachBatch(penstock.exactly_once(sink, uid="out", job=target, checkpoint=place))


def _through_format(frame: DataFrame, servers: str, target: str, place: str) -> DataStreamWriter:
    sink = {"sink": "kafka", "servers": servers, "topic": target, "uid": "out", "job": target}
    return frame.writeStream.format("penstock").options(**sink)


DROP_IN = "foreachBatch, exactly once"
DOORS: Mapping[str, Door] = {
    DROP_IN: _through_drop_in,
    "foreachBatch, Spark's sink, at least once": _through_spark,
    "format penstock": _through_format,
}


if __name__ == "__main__":
    main()
