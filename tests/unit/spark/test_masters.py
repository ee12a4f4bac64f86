"""Where tasks run, as the master's address tells, and what follows for a start."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from penstock.errors import ClusterUnavailable, ConfigurationError
from penstock.spark import executors, session
from penstock.spark.executors import cluster_errors, require_answer, require_known, runs_here


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local-cluster[2,1,1024]",
        "spark://127.0.0.1:7077",
        "spark://localhost:7077",
        "spark://[::1]:7077",
        "spark://127.0.0.1:7077,127.0.0.1:7078",
    ],
)
def test_tasks_of_these_run_on_this_machine(master: str) -> None:
    assert runs_here(master)


@pytest.mark.parametrize(
    "master", ["spark://10.0.0.7:7077", "spark://127.0.0.1:7077,other:7077", "yarn", "k8s://https://127.0.0.1:6443"]
)
def test_tasks_of_these_may_run_elsewhere(master: str) -> None:
    assert not runs_here(master)


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_one_master_that_answers_is_enough(listening: int) -> None:
    require_answer(f"spark://127.0.0.1:1,127.0.0.1:{listening}")
    require_answer("local[2]")
    require_answer("yarn")


def test_a_master_that_is_down_is_named_and_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_ANSWER_SECONDS", 0.0)
    with pytest.raises(ClusterUnavailable, match=r"No Spark master answers at spark://127\.0\.0\.1:1\.") as down:
        require_answer("spark://127.0.0.1:1")
    assert down.value.retryable
    assert not down.value.checkpoint_only
    assert down.value.to_do


def test_what_is_no_master_is_refused_before_java_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java would end with a stack trace, and PySpark say no more than that it has."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.setattr(session, "running_session", lambda: None)
    monkeypatch.setattr(session, "find_java", lambda: pytest.fail("it looks for Java"))
    with pytest.raises(ConfigurationError, match="knows no master such as 'sparc:"):
        session.session("job", conf={"spark.master": "sparc://h:7077"}, jars=(), local_storage=False)


def test_masters_that_spark_knows() -> None:
    for master in ("local", "local[2]", "local-cluster[2,1,1024]", "spark://h:7077", "yarn", "k8s://https://h:6443"):
        require_known(master)
    for other in ("sparc://h:7077", "yarn-client", "h:7077", ""):
        with pytest.raises(ConfigurationError, match="knows no master"):
            require_known(other)


def test_what_spark_says_of_a_master_is_named() -> None:
    with pytest.raises(ClusterUnavailable), cluster_errors("spark://h:1"):
        raise RuntimeError("Exiting due to error from cluster scheduler: All masters are unresponsive! Giving up.")
    with pytest.raises(ConfigurationError, match="knows no master"), cluster_errors("sparc://h:1"):
        raise RuntimeError("org.apache.spark.SparkException: Could not parse Master URL: 'sparc://h:1'")
    with pytest.raises(KeyError), cluster_errors("spark://h:1"):
        raise KeyError("something else")
