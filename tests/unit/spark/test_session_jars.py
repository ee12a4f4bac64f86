"""Where a connector's jars go: on the class path of a JVM that runs the tasks, to Spark for all others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, find_spark_home

from penstock.spark import session
from penstock.spark.executors import runs_tasks_itself


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
    assert not session.brings_jars({"spark.driver.memory": "1g"})
    for key in ("spark.jars", "spark.jars.packages", "spark.driver.userClassPathFirst"):
        assert session.brings_jars({key: "x"})
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 1g\n")
    assert not session.brings_jars({})
    (conf / "spark-defaults.conf").write_text("spark.jars.packages a:b:1\n")
    assert session.brings_jars({})


def test_under_spark_submit_nobody_looks_for_the_folder_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark ends the process where it finds none, and a container of YARN has only its zip."""
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(find_spark_home, "_find_spark_home", lambda: sys.exit(-1))
    assert session.brings_jars({})


def test_spark_is_given_what_java_was_not_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Java was started by somebody else, who knows nothing of our jars."""
    system = SimpleNamespace(getProperty=lambda name: "/conf:/spark.jar:/ours/one.jar")
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    assert session._not_on_class_path(["/ours/one.jar", "/ours/two.jar"]) == ["/ours/two.jar"]


class Missing(Py4JJavaError):  # type: ignore[misc]
    def __init__(self) -> None:
        Exception.__init__(self, "java.lang.ClassNotFoundException")


def java_with(*classes: str) -> Any:
    def load(name: str) -> None:
        if name not in classes:
            raise Missing

    utils = SimpleNamespace(getContextOrSparkClassLoader=lambda: SimpleNamespace(loadClass=load))
    spark = SimpleNamespace(util=SimpleNamespace(Utils=utils))
    system = SimpleNamespace(getProperty=lambda name: "")
    java = SimpleNamespace(lang=SimpleNamespace(System=system))
    return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark)), java=java)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set is one jar of its name."""
    monkeypatch.setattr(session, "jar_set", lambda name: [Path(f"/cache/{name}.jar")])


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_a_connector_that_came_with_spark_submit_is_used(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """In a container of a cluster there is no cache of ours, and often no way to fill one."""
    monkeypatch.setattr(SparkContext, "_jvm", java_with(session._KAFKA_CLASS))
    given = session.paths_to_give(["spark-kafka", "spark-delta"], master, lambda key: "")
    assert given == ["/cache/spark-kafka.jar", "/cache/spark-delta.jar"], "ours is on the driver's class path"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    given = session.paths_to_give(["spark-kafka", "spark-delta"], master, lambda key: "")
    assert given == ["/cache/spark-delta.jar"]
    monkeypatch.setattr(SparkContext, "_jvm", java_with())
    given = session.paths_to_give(["spark-kafka"], master, lambda key: "")
    assert given == ["/cache/spark-kafka.jar"], "spark-submit brought none"


@pytest.mark.usefixtures("fetched")
def test_a_connector_that_the_user_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", java_with())
    named = {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"}
    assert session.paths_to_give(["spark-kafka"], "yarn", lambda key: named.get(key, "")) == []


def test_sets_are_brought_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_present", lambda name: name == "spark-delta")
    monkeypatch.setattr(session, "has_connector", lambda: True)
    assert session.sets_to_bring(["spark-kafka", "spark-delta", "spark-jdbc"]) == ["spark-kafka", "spark-delta"]
    monkeypatch.setattr(session, "has_connector", lambda: False)
    assert session.sets_to_bring(["spark-kafka"]) == [], "no guess: the lock has none of this version of Spark"


def test_a_jar_that_another_query_is_adding_is_loaded_once_it_is_listed() -> None:
    """Queries start side by side. One that found the jar in Spark's list went on, and its class was not there yet."""
    listed, loaded = list[str](), list[str]()
    seen: list[list[str]] = []

    def add_jar(path: str) -> None:
        listed.append(path)
        session.ensure_files(spark, [jar])  # the other query, at this very moment
        seen.append(list(loaded))

    jar = Path("/cache/LaneWriter-1.jar")
    context = SimpleNamespace(listJars=lambda: SimpleNamespace(mkString=lambda comma: comma.join(listed)))
    url = SimpleNamespace(toURI=lambda: SimpleNamespace(toURL=lambda: str(jar)))
    loader = SimpleNamespace(addURL=loaded.append)
    utils = SimpleNamespace(getContextOrSparkClassLoader=lambda: loader)
    apache = SimpleNamespace(spark=SimpleNamespace(util=SimpleNamespace(Utils=utils)))
    io = SimpleNamespace(io=SimpleNamespace(File=lambda path: url))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=apache), java=io)
    spark: Any = SimpleNamespace(
        _jvm=jvm, sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context, addJar=add_jar))
    )
    session.ensure_files(spark, [jar])
    assert seen == [[str(jar)]]
    assert listed == [str(jar)]
