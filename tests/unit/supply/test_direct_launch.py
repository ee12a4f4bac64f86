"""Java started without spark-submit: what its launcher said is kept, by all that it depends on. Javas here are shell
scripts."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from penstock.supply import class_archive, early, launch
from penstock.supply.java import DROPPED, JavaHome

#: Plays launcher: counts its calls, and answers with its arguments as `spark-class` would be told.
LAUNCHER = """#!/bin/sh
echo asked >> "$(dirname "$0")/asked"
printf 'a line of Java own\\n\\0\\n'
printf '%s\\0' "$0" -cp /conf:/jars/* -Xmx1g ADD "$TOLD" org.apache.spark.deploy.SparkSubmit pyspark-shell
exit ${LAUNCHER_STATUS:-0}
""".replace("ADD", DROPPED)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark that is nothing but its folders."""
    spark = tmp_path / "pyspark"
    for folder in ("jars", "bin", "conf"):
        (spark / folder).mkdir(parents=True)
    (spark / "bin" / "load-spark-env.sh").write_text("# a comment\nexport SPARK_SCALA_VERSION=2.13\n")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOLD", "-Dx=y")
    monkeypatch.setattr(early, "_early", None)  # whatever other tests have run in this process
    for name in ("SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    return spark


@pytest.fixture
def java(tmp_path: Path) -> JavaHome:
    binary = tmp_path / "jdk" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(LAUNCHER)
    binary.chmod(0o755)
    return JavaHome(tmp_path / "jdk", 17, "JAVA_HOME")


def asked(java: JavaHome) -> int:
    file = java.home / "bin" / "asked"
    return len(file.read_text().splitlines()) if file.exists() else 0


def options(java: JavaHome, home: Path, **conf: str) -> list[str] | None:
    return launch._jvm_options(java, home, conf, launch._environment(home))


def test_the_launcher_is_asked_once(java: JavaHome, home: Path, tmp_path: Path) -> None:
    expected = ["-cp", "/conf:/jars/*", "-Xmx1g", "-Dx=y"]
    assert options(java, home) == expected
    assert options(java, home, **{"spark.sql.shuffle.partitions": "4"}) == expected
    assert asked(java) == 1
    [kept] = (tmp_path / "cache" / "java").glob("launch-*.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_it_is_asked_again_where_the_answer_may_differ(
    java: JavaHome, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options(java, home)
    options(java, home, **{"spark.driver.memory": "2g"})
    (home / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    options(java, home)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmore=1")
    options(java, home)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    options(java, home)
    assert asked(java) == 5


def test_an_answer_with_a_secret_is_not_kept(java: JavaHome, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLD", "-Djavax.net.ssl.keyStorePassword=hunter2")
    for _ in range(2):
        assert "-Djavax.net.ssl.keyStorePassword=hunter2" in (options(java, home) or [])
    assert asked(java) == 2


def test_what_is_kept_may_be_damaged_or_nowhere(
    java: JavaHome, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = options(java, home)
    [kept] = (tmp_path / "cache" / "java").glob("launch-*.json")
    for text in ("", "nonsense", "7", json.dumps({"version": 99, "command": ["java"]})):
        kept.write_text(text)
        assert options(java, home) == expected
    assert asked(java) == 5
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    assert options(java, home) == expected


@pytest.mark.parametrize("status", ["1", "0"])
def test_a_launcher_that_refuses_or_wants_a_variable_set(
    java: JavaHome, home: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setenv("LAUNCHER_STATUS", status)
    if status == "0":
        java.java.write_text(LAUNCHER.replace('"$0" -cp', 'env LD_LIBRARY_PATH=/x "$0" -cp'))
    assert options(java, home) is None


@pytest.mark.parametrize(
    "unusual", ["SPARK_TESTING", "SPARK_PREPEND_CLASSES", "SPARK_LAUNCHER_OPTS", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"]
)
def test_where_the_environment_is_unusual_pyspark_starts_java(monkeypatch: pytest.MonkeyPatch, unusual: str) -> None:
    assert launch._usual_home({}) is not None
    monkeypatch.setenv(unusual, "1")
    assert launch._usual_home({}) is None
    assert launch.start_java({}) is None


def test_where_spark_is_unusual_pyspark_starts_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert launch._usual_home({"spark.remote": "sc://there"}) is None
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert launch._usual_home({}) is not None
    (tmp_path / "spark-env.sh").touch()
    assert launch._usual_home({}) is None
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert launch._usual_home({}) is None


def test_workers_hash_alike(home: Path) -> None:
    """As spark-submit has it: strings would hash differently in each."""
    environment = launch._environment(home)
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["SPARK_HOME"] == str(home)
    assert environment["SPARK_CONF_DIR"] == str(home / "conf")
    (home / "bin" / "load-spark-env.sh").write_text("")
    with pytest.raises(OSError, match="not as they were"):
        launch._environment(home)


def test_a_java_that_does_not_come_up_is_left_to_pyspark(
    java: JavaHome, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "find_java", lambda: java)
    monkeypatch.setattr(launch, "_usual_home", lambda conf: home)
    monkeypatch.setattr(class_archive, "java_options", lambda *_: [])
    assert launch.start_java({}) is None
    monkeypatch.setattr(launch, "find_java", lambda: JavaHome(home / "nowhere", 17, "PATH"))
    assert launch.start_java({}) is None


def test_jars_come_behind_what_is_on_the_class_path() -> None:
    options = ["-Xmx1g", "-cp", "/conf:/jars/*", "-Da=b"]
    assert launch.with_jars(options, [Path("/one.jar"), Path("/two.jar")]) == [
        "-Xmx1g", "-cp", "/conf:/jars/*:/one.jar:/two.jar", "-Da=b",
    ]  # fmt: skip
    assert launch.with_jars(options, []) == options
    assert launch.with_jars(["-Xmx1g"], [Path("/one.jar")]) == ["-Xmx1g"]
