"""Operations, attached to a run from outside: server, supervisor, registry, standby and lease, open transactions.

`attach.attached` adds them to a run of a job, `attach_process` to a process that a supervisor started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.control import hooks
from penstock.ops.process import lifeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from penstock.contracts.sink import TwoPhaseSink


def attach_process() -> None:
    """Prepare this process for the jobs and drop-ins of a program that a supervisor has started. Loads little: the
    program comes first."""
    hooks.before_java, hooks.before_dropin, hooks.dropin_ready = _prefetch, _take_turn, lifeline.report_running


def _prefetch() -> None:
    from penstock.ops import prefetch

    prefetch.begin()


def _take_turn(spark: SparkSession, sinks: Iterable[TwoPhaseSink]) -> None:
    from penstock.ops.turn import take_turn

    take_turn(spark, sinks)
