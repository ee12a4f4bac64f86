"""How Spark's Java process is started: what stands on its command line, what in a file, what in its environment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.spark import session as launch
from penstock.spark.session import java_environment

CONF = {
    "spark.executor.memory": "1g",
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": "hunter2==",
    "spark.sql.catalog.shop.url": "jdbc:x://db/shop?password=hunter2",
    "spark.driver.extraJavaOptions": "-Dx.password=needed-there",
}
OWN = ("PYSPARK_SUBMIT_ARGS", "LOG4J_CONFIGURATION_FILE", "SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")


@pytest.fixture(autouse=True)
def nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OWN, "PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_LAUNCHER_OPTS", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(launch, "_quiet_java", lambda: tmp_path / "java")


def arguments() -> list[str]:
    return os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()


def test_secrets_go_by_a_file_that_is_gone_afterwards() -> None:
    before = dict(os.environ)
    with java_environment(CONF) as plain:
        assert set(plain) == {"spark.executor.memory", "spark.driver.extraJavaOptions"}
        option, name, *rest = arguments()
        assert (option, rest) == ("--properties-file", ["--load-spark-defaults", "pyspark-shell"])
        file = Path(name)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert file.read_text().splitlines() == [
            "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net=hunter2\\=\\=",
            "spark.sql.catalog.shop.url=jdbc\\:x\\://db/shop?password\\=hunter2",
        ]
        assert "hunter2" not in str({key: os.environ[key] for key in os.environ.keys() - before.keys()})
    assert not file.parent.exists()
    assert dict(os.environ) == before


def test_the_file_is_gone_when_java_does_not_start() -> None:
    with pytest.raises(RuntimeError), java_environment(CONF):
        file = Path(arguments()[1])
        raise RuntimeError("JAVA_GATEWAY_EXITED")
    assert not file.parent.exists()
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_without_a_secret_there_is_no_file() -> None:
    with java_environment({"spark.executor.memory": "1g"}) as plain:
        assert plain == {"spark.executor.memory": "1g"}
        assert arguments() == []


@pytest.mark.parametrize(
    ("given", "seen"),
    [("--master local[2] pyspark-shell", "--load-spark-defaults --master local[2] pyspark-shell"),
     ("--properties-file /theirs pyspark-shell", "--properties-file /theirs pyspark-shell")],
)  # fmt: skip
def test_what_the_user_gave_stays(monkeypatch: pytest.MonkeyPatch, given: str, seen: str) -> None:
    """A second file would take the place of the first; secrets are then told to Spark once Java runs."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    with java_environment(CONF) as plain:
        assert os.environ["PYSPARK_SUBMIT_ARGS"].endswith(seen)
        assert "hunter2" not in str(plain)
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == given


def test_under_spark_submit_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    before = dict(os.environ)
    with java_environment(CONF) as plain:
        assert plain == CONF
        assert dict(os.environ) == before


def test_logging_is_quiet_unless_somebody_has_said_how_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quiet(**conf: str) -> bool:
        with java_environment(conf):
            return os.environ.get("LOG4J_CONFIGURATION_FILE", "").endswith("/penstock/spark/log4j2.properties")

    assert quiet()
    assert not quiet(**{"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=/theirs"})
    for name in OWN:
        with monkeypatch.context() as said:
            said.setenv(name, "-Dlog4j2.configurationFile=/theirs")
            assert not quiet()
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dlog4j2.configurationFile=/theirs\n")
    assert not quiet()
    (tmp_path / "spark-defaults.conf").unlink()
    (tmp_path / "log4j2.xml").touch()
    assert not quiet()


def test_options_for_java_come_behind_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dfrom=user")
    with java_environment({}, options=["-Xshare:auto"]):
        assert os.environ["SPARK_SUBMIT_OPTS"].startswith("-Dfrom=user -Xshare:auto")
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dfrom=user"


def test_jars_come_behind_what_is_on_the_class_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark adds the variable behind its own jars and the user's `spark.driver.extraClassPath`."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/theirs/*")
    with java_environment({}, ["/one.jar", "/two.jar"]):
        assert os.environ["SPARK_DIST_CLASSPATH"] == "/theirs/*:/one.jar:/two.jar"
    assert os.environ["SPARK_DIST_CLASSPATH"] == "/theirs/*"
