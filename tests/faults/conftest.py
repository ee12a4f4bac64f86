"""What fault tests share: worlds of their own, and one Spark session for the jobs that run inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fault_case import Case
from tests.support.servers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def quickly(quick_jvm: None) -> None:
    """Whatever is started here starts quickly."""


@pytest.fixture
def case(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Case]]:
    """Makes cases on the shared broker: `case()`, `case(count=True, transaction_timeout="5s")`."""
    made: list[Case] = []

    def make(**config: Any) -> Case:
        made.append(Case(broker.servers, tmp_path / f"case-{len(made)}", **config))
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

    from penstock.spark import session as spark

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
