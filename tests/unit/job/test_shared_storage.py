"""Checkpoints on a path of one machine, where tasks run on others."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Checkpoints
from penstock.errors import StorageNotShared
from penstock.spark.executors import require_shared


class Session:
    """As much of a Spark session as is asked: where tasks run, and which file system a plain path belongs to."""

    def __init__(self, master: str, default: str = "file:///") -> None:
        self.sparkContext = self
        self.master, self._jsc, self._default = master, self, default

    def hadoopConfiguration(self) -> dict[str, str]:  # noqa: N802 - Java's name
        return {"fs.defaultFS": self._default}


def require(location: str, master: str, *, shared: bool = False, default: str = "file:///") -> None:
    spark: Any = Session(master, default)
    require_shared(location, spark, is_shared=Checkpoints(storage_is_shared=shared).storage_is_shared)


@pytest.mark.parametrize("location", ["/var/lib/checkpoints", "file:///var/lib/checkpoints", "relative"])
@pytest.mark.parametrize("master", ["spark://10.0.0.7:7077", "yarn"])
def test_a_path_of_one_machine_is_refused_where_tasks_run_on_others(location: str, master: str) -> None:
    with pytest.raises(StorageNotShared, match="storage-is-shared") as refused:
        require(location, master)
    assert refused.value.safe == "nothing was started."
    assert not refused.value.retryable
    require(location, master, shared=True)
    require(location, "spark://127.0.0.1:7077")
    require(location, "local[2]")


def test_a_plain_path_belongs_to_the_default_file_system() -> None:
    require("hdfs://name/checkpoints", "yarn")
    require("/checkpoints", "yarn", default="hdfs://name:8020")
    with pytest.raises(StorageNotShared):
        require("file:///checkpoints", "yarn", default="hdfs://name:8020")
