"""Spark Connect is refused by name, wherever it shows."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import penstock
from penstock import Job, KafkaSink
from penstock.errors import ConnectUnsupported
from penstock.spark.executors import refuse_connect


class ConnectSession:
    """Looks like the one of `pyspark.sql.connect`, whose packages are not installed here."""


ConnectSession.__module__ = "pyspark.sql.connect.session"


def named(raised: pytest.ExceptionInfo[ConnectUnsupported]) -> None:
    error = raised.value
    assert (error.safe, error.retryable) == ("nothing was started.", False)
    assert "spark-submit" in error.to_do


def test_a_session_of_connect(tmp_path: Any) -> None:
    session: Any = ConnectSession()
    with pytest.raises(ConnectUnsupported, match="is a Spark Connect session") as raised:
        Job("job", spark=session)
    named(raised)
    with pytest.raises(ConnectUnsupported):
        penstock.exactly_once(KafkaSink("t", servers="localhost:1"), uid="out", spark=session)


def test_a_session_that_would_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connect()
    with pytest.raises(ConnectUnsupported, match=r"spark\.remote"):
        refuse_connect(remote="sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(ConnectUnsupported, match="SPARK_REMOTE") as raised:
        _ = Job("job").spark
    named(raised)


def test_a_pyspark_without_py4j(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "py4j" else find(name, *more))
    with pytest.raises(ConnectUnsupported, match="without py4j") as raised:
        refuse_connect()
    named(raised)
