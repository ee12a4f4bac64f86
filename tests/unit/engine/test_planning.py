"""Which sinks may have their writer planned once: those whose own class says that its shape never changes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, ClassVar

import pytest

from penstock import FileSink, KafkaSink, PostgresSink
from penstock.engine.streaming import shapes_once
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.contracts.sink import TwoPhaseSink


class Inherited(FileSink):
    """Its shape is that of its parent."""


class OwnShape(FileSink):
    """Nobody knows what this one does in an epoch."""

    def shape(self, frame: DataFrame) -> DataFrame:
        return frame


class SaysSo(OwnShape):
    shapes_once: ClassVar[bool] = True


class TakesItBack(FileSink):
    shapes_once: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("sink", "once"),
    [
        (KafkaSink("topic", servers="here:1"), True),
        (FileSink("/folder"), True),
        (Inherited("/folder"), True),
        (OwnShape("/folder"), False),
        (SaysSo("/folder"), True),
        (TakesItBack("/folder"), False),
        (PostgresSink("postgresql://here/shop", table="orders"), False),
        (MemorySink(), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_which_sinks_are_shaped_once(sink: TwoPhaseSink, once: bool) -> None:
    assert shapes_once(sink) is once


def test_a_sink_that_says_so_still_travels() -> None:
    sink = KafkaSink("topic", servers="here:1", options={"linger.ms": "1"})
    assert pickle.loads(pickle.dumps(sink)) == sink
