"""Where a connector's jars go: on the class path of a JVM that runs the tasks, to Spark for all others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from penstock.spark import session
from penstock.spark.local_master import runs_tasks_itself


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_only_a_local_master_runs_tasks_in_the_driver() -> None:
    for master in ("local", "local[*]", "local[2]", "local[2,3]"):
        assert runs_tasks_itself(master)
    for other in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "", None):
        assert not runs_tasks_itself(other)


def test_jars_of_the_users_come_before_ours(conf: Path) -> None:
    assert not session._brings_jars({"spark.driver.memory": "1g"})
    for key in ("spark.jars", "spark.jars.packages", "spark.driver.userClassPathFirst"):
        assert session._brings_jars({key: "x"})
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 1g\n")
    assert not session._brings_jars({})
    (conf / "spark-defaults.conf").write_text("spark.jars.packages a:b:1\n")
    assert session._brings_jars({})


def test_spark_is_given_what_java_was_not_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Java was started by somebody else, who knows nothing of our jars."""
    system = SimpleNamespace(getProperty=lambda name: "/conf:/spark.jar:/ours/one.jar")
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    assert session._not_on_class_path(["/ours/one.jar", "/ours/two.jar"]) == ["/ours/two.jar"]
