"""Avro with a schema registry beside plain bytes: Kafka to Kafka in one Spark session, alternating; prints the ratio.

Each round copies the same topic twice, with jobs of their own: its values as they are, and decoded from Avro and
encoded again, in epochs of one size. The first third of a job's epochs and the first round are left out: Java compiles
a query's code anew. Needs the extra `registry`.

    python bench/bench_registry.py --rows 6000000 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from penstock import Avro, Checkpoints, Job, KafkaSink, KafkaSource
from penstock.spark.session import session
from servers import Broker
from tests.support.kafka import create_topic
from tests.support.servers.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

console = Console()
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [{"name": n, "type": t} for n, t in (("id", "long"), ("user", "string"), ("amount", "double"))],
    }
)


def main() -> None:
    options = parser().parse_args()
    rates: dict[str, list[float]] = {"bytes": [], "avro": []}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder) / "kafka") as broker,
        Registry.start() as registry,
    ):
        source = create_topic(broker.servers, options.partitions)
        fill(broker.servers, source, register(registry.url, source), options.rows)
        spark = session(
            "bench", conf={"spark.master": f"local[{options.partitions}]"}, jars=["spark-kafka"], local_storage=True
        )
        try:
            for number in range(options.rounds + 1):
                for way in sorted(rates, reverse=bool(number % 2)):
                    made = Avro(registry=registry.url, schema=SCHEMA) if way == "avro" else None
                    target = create_topic(broker.servers, options.partitions)
                    rate = steady(spark, f"{folder}/{way}-{number}", (broker.servers, source, target), made, options)
                    console.print(f"round {number} {way}: {rate:,.0f} rows/s")
                    rates[way] += [rate] if number else []
        finally:
            spark.stop()
    middle = {way: statistics.median(found) for way, found in rates.items()}
    ratio = middle["avro"] / middle["bytes"]
    console.print(f"bytes {middle['bytes']:,.0f} rows/s, Avro {middle['avro']:,.0f} rows/s: ratio {ratio:.2f}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rows", type=int, default=6_000_000)
    made.add_argument("--epoch", type=int, default=500_000, help="rows of an epoch")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--partitions", type=int, default=2)
    return made


def steady(
    spark: SparkSession, storage: str, where: tuple[str, str, str], avro: Avro | None, options: argparse.Namespace
) -> float:
    """Rows a second of the job's later epochs."""
    servers, source, target = where
    job = Job("bench", spark=spark, checkpoints=Checkpoints(storage=storage, interval="0s"))
    rows = KafkaSource(source, servers=servers, value=avro, max_offsets_per_epoch=options.epoch)
    job.write(job.read(rows, uid="in").select("value"), KafkaSink(target, servers=servers, value=avro), uid="out")
    counts: list[int] = []
    ends: list[float] = []

    def hear(event: Any) -> None:
        if event["event"] == "precommitted":
            counts.append(int(event["rows"]))
        elif event["event"] == "completed":
            ends.append(time.monotonic())
            if sum(counts) >= options.rows:
                job.stop()

    job.run(on_event=hear)
    first = len(ends) // 3
    return sum(counts[first + 1 :]) / (ends[-1] - ends[first])


def register(url: str, topic: str) -> int:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    with SchemaRegistryClient({"url": url}) as client:
        return int(client.register_schema(f"{topic}-value", Schema(SCHEMA, "AVRO")))


def payments(id_: int, count: int) -> Iterator[bytes]:
    """About a hundred bytes each, as another client writes them."""
    header = struct.pack(">bI", 0, id_)
    for number in range(count):
        user = f"user-{number % 9973:06d}-{'x' * 68}".encode()
        yield header + zigzag(number) + zigzag(len(user)) + user + struct.pack("<d", number / 7)


def zigzag(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def fill(servers: str, topic: str, id_: int, count: int) -> None:
    from confluent_kafka import Producer

    started = time.monotonic()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for number, value in enumerate(payments(id_, count)):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)
    console.print(f"{count:,} rows written in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
