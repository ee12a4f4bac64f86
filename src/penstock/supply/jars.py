"""Locked sets of jars: what is run is bit for bit what was tested.

`jars.lock.json`, shipped beside this module, names every jar of every set with its checksum. A set is downloaded once
per user, verified, and moved into the cache in one step; from then on it is found without network.

    spark-kafka     Spark's Kafka connector and what it needs; for other versions of Spark than the newest ones there
                    are sets of their own, and whoever asks for this one gets that of the installed PySpark
    kafka-broker    a whole Kafka broker, for development and tests
    kafka-broker-3… older ones, for tests
    spark-delta     Spark's Delta connector, for tests and benchmarks
    spark-s3        Spark's way to `s3a://`, for checkpoints on S3
    spark-jdbc      drivers for Spark's JDBC writer, for benchmarks
    flink           what Flink's Python package lacks, for benchmarks
    hdfs, yarn      Hadoop's own servers, for tests of HDFS and YARN

`python -m penstock.supply.jars relock` rewrites the lock from `ROOTS` after a version there was changed; followed by
names of sets, it leaves the others as they are.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.caches import user_cache
from penstock.errors import ConnectorMissing, DevelopmentError
from penstock.spark.versions import KAFKA_JARS, installed_text, installed_version
from penstock.storage.private import only_one
from penstock.supply.ivy import Coordinate, coordinate_of, place, retrieve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCK = Path(__file__).with_name("jars.lock.json")  # where `relock` writes; read through `resources`
_STAMP = "verified"  # written last, so its presence says that every jar beside it had the right checksum
_AT_ONCE = 4  # Ivy asks for one file after the other and mostly waits


@dataclass(frozen=True, slots=True)
class Root:
    """What a set grows from when the lock is made again."""

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


DEFAULT_SETS = ("kafka-broker", "spark-kafka")
"""What jobs and the development broker need; the rest is for tests that ask for it."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One line of the lock."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def coordinate(self) -> Coordinate:
        return Coordinate(self.group, self.artifact, self.version)


@functools.cache
def locked() -> Mapping[str, tuple[LockedJar, ...]]:
    """The lock, by name of the set."""
    # Not by its path: on a cluster the package may be inside a zip file.
    body = json.loads(resources.files("penstock.supply").joinpath(LOCK.name).read_text(encoding="utf-8"))
    return {name: tuple(LockedJar(**jar) for jar in jars) for name, jars in body["sets"].items()}


def jar_folder(name: str) -> Path:
    """Where set `name` is or will be: its name carries the lock's digest, so a changed lock is another folder."""
    jars = _set(name)
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()[:12]
    return user_cache() / "jars" / f"{name}-{digest}"


def is_present(name: str) -> bool:
    """Whether `jar_set(name)` will answer from the cache."""
    return _complete(jar_folder(name), _set(name))


def jar_set(name: str) -> list[Path]:
    """The verified jars of set `name`, downloaded if this user never had them.

    Safe to call from several processes at once: one downloads, the others wait for it. Raises `DevelopmentError`
    naming the jar when one cannot be had or is not what the lock says; the cache is then as it was before.
    """
    jars = _set(name)
    folder = jar_folder(name)
    if not _complete(folder, jars):
        with only_one(folder.with_suffix(".lock")):
            if not _complete(folder, jars):  # another process may have brought it while this one waited
                _bring(jars, folder)
    return [folder / jar.coordinate.filename for jar in jars]


def _set(name: str) -> tuple[LockedJar, ...]:
    sets = locked()
    if name == KAFKA_JARS:
        name = _connector_set()
    if name not in sets:
        raise DevelopmentError(
            f"There is no jar set named {name!r}.", safe="Nothing was downloaded.", to_do=f"Use one of {sorted(sets)}."
        )
    return sets[name]


def has_connector() -> bool:
    """Whether the lock has a Kafka connector for the installed PySpark."""
    return installed_version().kafka_jars is not None


def _connector_set() -> str:
    name = installed_version().kafka_jars
    if name is None:
        raise ConnectorMissing(
            f"Penstock's lock has no Kafka connector for PySpark {installed_text()}.",
            safe="nothing was started.",
            to_do="name the jars of spark-sql-kafka-0-10 for this version, and what they need, in spark.jars, or the"
            " connector in spark.jars.packages; or install a version of PySpark that docs/reference/versions.md lists.",
        )
    return name


def _complete(folder: Path, jars: Sequence[LockedJar]) -> bool:
    if not (folder / _STAMP).is_file():
        return False
    try:
        return all((folder / jar.coordinate.filename).stat().st_size == jar.size for jar in jars)
    except FileNotFoundError:
        return False


def _bring(jars: Sequence[LockedJar], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        ready = Path(scratch, "ready")
        ready.mkdir()

        def fetch(share: int) -> None:
            work, mine = Path(scratch, f"ivy-{share}"), jars[share::_AT_ONCE]
            if not mine:
                return
            retrieve([jar.coordinate for jar in mine], work)
            for jar in mine:
                source = place(work, jar.coordinate)
                _verify(source, jar)
                source.rename(ready / jar.coordinate.filename)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, range(_AT_ONCE)))
        (ready / _STAMP).touch()
        if folder.exists():  # damaged: something was deleted or cut short since it was verified
            shutil.rmtree(folder)
        ready.rename(folder)


def _verify(path: Path, jar: LockedJar) -> None:
    found = sha256_of(path)
    if found != jar.sha256:
        raise DevelopmentError(
            f"{jar.coordinate} came with checksum {found[:16]}… ({path.stat().st_size} bytes), "
            f"but the lock says {jar.sha256[:16]}… ({jar.size} bytes).",
            safe="The download was thrown away and the cache is unchanged.",
            to_do="See that the repository or proxy in use serves the original file, then run `penstock dev jars`.",
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def relock(path: Path = LOCK, only: Sequence[str] = ()) -> None:
    """Resolve `ROOTS`, or those named, and write what was found as the new lock."""
    sets: dict[str, list[LockedJar]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, root in ROOTS.items():
            if only and name not in only:
                sets[name] = list(locked()[name])
                continue
            found = retrieve(root.jars, Path(scratch, name), transitive=root.transitive)
            sets[name] = sorted((_describe(jar) for jar in found), key=lambda jar: (jar.group, jar.artifact))
    lines = [
        f"    {json.dumps(name)}: [\n" + ",\n".join(f"      {json.dumps(asdict(jar))}" for jar in jars) + "\n    ]"
        for name, jars in sorted(sets.items())
    ]
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text('{\n  "format": 1,\n  "sets": {\n' + ",\n".join(lines) + "\n  }\n}\n", encoding="utf-8")
    aside.replace(path)


def _describe(path: Path) -> LockedJar:
    found = coordinate_of(path)
    return LockedJar(found.group, found.artifact, found.version, sha256_of(path), path.stat().st_size)


if __name__ == "__main__":
    if sys.argv[1:2] != ["relock"]:
        raise SystemExit("usage: python -m penstock.supply.jars relock [SET ...]")
    relock(only=sys.argv[2:])
