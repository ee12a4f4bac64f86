"""What fault tests share: worlds of their own, and one Spark session for the jobs that run inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.dev.broker import Broker
from tests.faults.jobs.pipeline import QUICK_JVM
from tests.support.case import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def quick_jvm(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Java's options for a job that starts in half the time: one job runs in peace, and the JVM archives the classes
    it loaded for all later ones. Where that fails the JVM says so in its log and starts as always."""
    folder = tmp_path_factory.mktemp("classes")
    world = Case(broker.servers, folder / "case", count=True, jvm=f"{QUICK_JVM} -XX:ArchiveClassesAtExit={folder}/jsa")
    world.source.feed(100)
    run = world.start()
    world.wait_visible(run)
    run.terminate()
    assert run.wait(patient=True) == 0, run.tail()
    world.close()
    return f"{QUICK_JVM} -XX:SharedArchiveFile={folder}/jsa"


@pytest.fixture
def case(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Case]]:
    """Makes cases on the shared broker: `case()`, `case(count=True, transaction_timeout="5s")`."""
    made: list[Case] = []

    def jvm() -> str:
        return str(request.getfixturevalue("quick_jvm"))

    def make(**config: Any) -> Case:
        made.append(Case(broker.servers, tmp_path / f"case-{len(made)}", quick=jvm, **config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """A local Spark session, made as `Job` makes it, for the tests of one module. It has no task retries: one failed
    task fails the epoch. Spark does not kill a worker whose task it has given up, as in a cluster that lost touch with
    it. A session that somebody else has running is ended."""
    from pyspark.sql import SparkSession

    from penstock.runtime import spark

    before = SparkSession.getActiveSession()
    if before is not None:
        before.stop()
    conf = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.task.killTimeout": "1h",
        "spark.sql.streaming.minBatchesToRetain": "100",  # tests look back at every epoch
    }
    made = spark.session("faults", conf=conf, jars=("spark-kafka",), local_storage=True)
    yield made
    made.stop()
