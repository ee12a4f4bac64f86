"""Which jars a new session gets from us: those that Spark does not have already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from penstock.spark import session


class Missing(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    def __init__(self) -> None:
        Exception.__init__(self, "java.lang.ClassNotFoundException")


def java_with(*classes: str) -> Any:
    def load(name: str) -> None:
        if name not in classes:
            raise Missing

    utils = SimpleNamespace(getContextOrSparkClassLoader=lambda: SimpleNamespace(loadClass=load))
    spark = SimpleNamespace(util=SimpleNamespace(Utils=utils))
    return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark)))


def test_a_connector_that_came_with_spark_submit_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container of a cluster there is no cache of ours, and often no way to fill one."""
    monkeypatch.setattr(SparkContext, "_jvm", java_with(session._KAFKA_CLASS))
    assert not session._is_wanted("spark-kafka")


def test_ours_is_brought_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_jvm", java_with())
    assert session._is_wanted("spark-kafka")


def test_other_sets_are_used_where_they_were_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_present", lambda name: name == "spark-delta")
    assert session._is_wanted("spark-delta")
    assert not session._is_wanted("spark-jdbc")
