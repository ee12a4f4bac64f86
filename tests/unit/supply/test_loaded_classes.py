"""Which of the classes that a JVM names are worth to be archived, and that a JVM without an answer does no harm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from penstock.supply.loaded_classes import loaded_classes, names_in

#: As Java 17 answers.
ANSWER = """java.lang.Object/null
|--org.apache.kafka.clients.ApiVersions/0x00007f3c5c0a1b20
|--org.apache.spark.SparkEnv$/0x00007f3c5c0a1b20
|  |--org.apache.spark.Inner$Class/0x00007f3c5c0a1b20
|--org.apache.spark.A$$Lambda$12/0x0000000801234/0x00007f3c5c0a1b20
|--org.apache.spark.sql.catalyst.expressions.GeneratedClass$SpecificUnsafeProjection/0x00007f3c5c0c2d40
|--jdk.proxy2.$Proxy12/0x00007f3c5c0a1b20
|--java.util.HashMap/null
"""


def test_classes_of_jars_are_named_and_what_was_made_at_run_time_is_not() -> None:
    assert names_in(ANSWER) == [
        "org.apache.kafka.clients.ApiVersions",
        "org.apache.spark.Inner$Class",
        "org.apache.spark.SparkEnv$",
    ]
    assert names_in("an answer of another kind") == []


def test_a_java_that_does_not_say_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert loaded_classes() == []

    def refuse(*given: Any) -> Any:
        raise RuntimeError("no such command")

    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(jvm=SimpleNamespace(), new_array=refuse))
    assert loaded_classes() == []
