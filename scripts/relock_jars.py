"""Rewrite the lock of jars after a version here was changed. With names of sets, the others stay as they are.

python -m scripts.relock_jars [SET ...]

spark-kafka     Spark's Kafka connector and what it needs; older versions of Spark have sets of their own
kafka-broker    a whole Kafka broker, for development and tests
kafka-broker-3… older ones, for tests
spark-delta     Spark's Delta connector, for tests and benchmarks
spark-s3        Spark's way to `s3a://`, for checkpoints on S3
spark-jdbc      drivers for Spark's JDBC writer, for benchmarks
flink           what Flink's Python package lacks, for benchmarks
hdfs, yarn      Hadoop's own servers, for tests of HDFS and YARN
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.supply.jars import LOCK, Coordinate, LockedJar, locked, retrieve, sha256_of


@dataclass(frozen=True, slots=True)
class Root:
    """What a set grows from."""

    jars: Sequence[Coordinate]
    transitive: bool


_AWS_MODULES = (
    "annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol",
    "checksums-spi", "checksums", "crt-core", "endpoints-spi", "http-auth-aws-eventstream", "http-auth-aws",
    "http-auth-spi", "http-auth", "http-client-spi", "identity-spi", "json-utils", "metrics-spi",
    "netty-nio-client", "profiles", "protocol-core", "regions", "retries-spi", "retries", "s3-transfer-manager",
    "s3", "sdk-core", "sts", "third-party-jackson-core", "url-connection-client", "utils-lite", "utils",
)  # fmt: skip


def _connector(version: str, *, clients: str, pool: str) -> Root:
    # Not transitive: the token provider of the matching version is missing from the public repository, and everything
    # else this set would pull in is already inside PySpark. Only delegation tokens touch the older jar's own code.
    return Root(
        (
            Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
            Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
            Coordinate("org.apache.kafka", "kafka-clients", clients),
            Coordinate("org.apache.commons", "commons-pool2", pool),
        ),
        transitive=False,
    )


ROOTS: Mapping[str, Root] = {
    "spark-kafka": _connector("4.2.0", clients="3.9.1", pool="2.12.1"),
    "spark-kafka-4.0": _connector("4.0.4", clients="3.9.1", pool="2.12.0"),
    "spark-kafka-4.1": _connector("4.1.3", clients="3.9.1", pool="2.12.1"),
    # slf4j-simple gives the broker a log: without a binding it would die without a word.
    "kafka-broker": Root(
        (Coordinate("org.apache.kafka", "kafka_2.13", "4.3.1"), Coordinate("org.slf4j", "slf4j-simple", "1.7.36")),
        transitive=True,
    ),
    # Older brokers, for the test that holds the Kafka sink to its contract with them.
    **{
        f"kafka-broker-{version.rpartition('.')[0]}": Root(
            (Coordinate("org.apache.kafka", "kafka_2.13", version), Coordinate("org.slf4j", "slf4j-simple", "1.7.36")),
            transitive=True,
        )
        for version in ("3.3.1", "3.9.1")
    },
    # Spark's own reader and writer of Delta tables, for tests and benchmarks: the Delta sink needs no jar. Not
    # transitive: the rest is inside PySpark, or serves catalogs and engines that are not used here.
    "spark-delta": Root(
        (
            Coordinate("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
            Coordinate("io.delta", "delta-storage", "4.4.0"),
        ),
        transitive=False,
    ),
    # What Spark's own JDBC writer needs, for the benchmark that runs it beside the SQL sinks, which need no jar.
    "spark-jdbc": Root(
        (
            Coordinate("org.postgresql", "postgresql", "42.7.11"),
            Coordinate("org.mariadb.jdbc", "mariadb-java-client", "3.5.8"),
        ),
        transitive=False,
    ),
    # What Flink's Python package lacks, for the benchmark that runs Flink beside Penstock: its Kafka connector with all
    # it needs, and what its SQL client stands on.
    "flink": Root(
        (
            Coordinate("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2"),
            Coordinate("org.apache.flink", "flink-sql-gateway", "2.2.0"),
        ),
        transitive=False,
    ),
    # Hadoop's way to S3, for checkpoints on s3a://. Not transitive: Hadoop asks for all of AWS in one jar of 686 MB, of
    # which these modules are what it touches; Netty and the HTTP client are inside PySpark.
    "spark-s3": Root(
        (
            Coordinate("org.apache.hadoop", "hadoop-aws", "3.5.0"),
            Coordinate("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
            Coordinate("software.amazon.eventstream", "eventstream", "1.0.1"),
            Coordinate("org.reactivestreams", "reactive-streams", "1.0.4"),
            *(Coordinate("software.amazon.awssdk", module, "2.35.4") for module in _AWS_MODULES),
        ),
        transitive=False,
    ),
    # A real name node and data node, for the tests of checkpoints on HDFS.
    "hdfs": Root((Coordinate("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),), transitive=False),
    # YARN itself is in the jar of `hdfs`; its resource manager signs with these, which that jar leaves out.
    "yarn": Root(
        (
            Coordinate("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
            Coordinate("org.bouncycastle", "bcprov-jdk18on", "1.82"),
            Coordinate("org.bouncycastle", "bcutil-jdk18on", "1.82"),
        ),
        transitive=False,
    ),
}


def relock(only: Sequence[str] = ()) -> None:
    """Resolve `ROOTS`, or those named, and write the result as the new lock."""
    sets: dict[str, list[LockedJar]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, root in ROOTS.items():
            if only and name not in only:
                sets[name] = list(locked()[name])
                continue
            paths = retrieve(root.jars, Path(scratch, name), transitive=root.transitive)
            sets[name] = sorted(map(_describe, paths), key=lambda jar: (jar.group, jar.artifact))
    lines = [
        f"    {json.dumps(name)}: [\n" + ",\n".join(f"      {json.dumps(asdict(jar))}" for jar in jars) + "\n    ]"
        for name, jars in sorted(sets.items())
    ]
    aside = LOCK.with_suffix(f".{os.getpid()}")
    aside.write_text('{\n  "format": 1,\n  "sets": {\n' + ",\n".join(lines) + "\n  }\n}\n", encoding="utf-8")
    aside.replace(LOCK)


def coordinate_of(jar: Path) -> Coordinate:
    """Which artifact a path returned by `retrieve` is."""
    version, artifact, group = (parent.name for parent in list(jar.parents)[:3])
    return Coordinate(group, artifact, version)


def _describe(path: Path) -> LockedJar:
    jar = coordinate_of(path)
    return LockedJar(jar.group, jar.artifact, jar.version, sha256_of(path), path.stat().st_size)


if __name__ == "__main__":
    relock(only=sys.argv[1:])
