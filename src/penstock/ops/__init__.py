"""Operations, attached to a run from outside: server, supervisor, registry, standby and lease, open transactions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.control import hooks
from penstock.ops.process import lifeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from penstock.contracts.sink import TwoPhaseSink


def attach_process() -> None:
    """Let the drop-ins of a program that a supervisor started wait for their turn. Loads little: the program comes
    first."""
    hooks.before_dropin, hooks.dropin_ready = _take_turn, partial(lifeline.report, running=True)


def _take_turn(spark: SparkSession, sinks: Iterable[TwoPhaseSink]) -> None:
    from penstock.ops.turn import take_turn

    take_turn(spark, sinks)
