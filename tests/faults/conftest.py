"""What fault tests share: worlds of their own, and one Spark session for the jobs that run inside this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.dev.broker import Broker
from tests.support.case import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    """A local Spark session, made as `Job` makes it, for the tests of one module."""
    from penstock.runtime import spark
    from tests.faults.jobs.pipeline import QUICK_JVM

    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "2",
    }
    made = spark.session("faults", conf=conf, jars=("spark-kafka",), local_storage=True)
    yield made
    made.stop()
