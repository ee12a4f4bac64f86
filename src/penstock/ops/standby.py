"""A driver that waits for its turn: everything that can be done before is done, and nothing is touched.

It waits for its supervisor, where it is a standby, and for the lease, where the job has one that somebody else holds.

`take_turn` stands at the beginning of `Job.run` and of the drop-in: before the job is in the registry, before a port is
opened, a generation registered, a checkpoint or a sink written to. The program has run up to there, so whatever it
does before is done in each driver. In one that nobody told to wait it returns at once, and Python workers start beside
what follows.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.engine.restarts import classify, jvm_gone
from penstock.ops.prefetch import LATER
from penstock.ops.process import lifeline
from penstock.spark.masters import runs_tasks_itself

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.contracts.sink import TwoPhaseSink
    from penstock.contracts.source import Source
    from penstock.ops.turn import JobLease

log = logging.getLogger("penstock")

_KEEP_WARM_SECONDS = 40.0  # Spark ends Python workers that had nothing to do for a minute
_HERE = LATER
#: What each Python worker loads.
_WORKER = ("penstock.engine.task",)


def take_turn(
    spark: SparkSession,
    sinks: Iterable[TwoPhaseSink],
    sources: Mapping[str, Source] | None = None,
    look: Callable[[], None] = lambda: None,
    lease: JobLease | None = None,
) -> None:
    """Return when this driver is the one that runs the job; meanwhile keep warm what it will need. `look` asks other
    systems whether they are there, and so opens what connections it can. A standby is ended by SIGTERM. Where the job
    has ended elsewhere, or its supervisor can wait for the lease without a driver, this process ends here."""
    modules = [*_WORKER, *writer_modules(sinks)]
    if not lifeline.is_standby() and (lease is None or lease.take_or_leave()):
        if lifeline.connected() and runs_tasks_itself(spark.sparkContext.master):
            threading.Thread(target=_start_workers, args=(spark, modules), name="penstock-workers", daemon=True).start()
        return
    warm: list[Callable[[], None]] = [partial(source.warm_up, spark, uid) for uid, source in (sources or {}).items()]
    turn = threading.Event()
    arguments = (turn, spark, modules, warm, look)
    threading.Thread(target=_keep_warm, args=arguments, name="penstock-standby", daemon=True).start()
    lifeline.await_turn()
    if lease is not None:
        lease.wait()
    turn.set()


def report_running(event: Mapping[str, Any]) -> None:
    """A listener that tells the supervisor when the job runs: only then it is time for a standby."""
    if event.get("event") == "recovered":
        lifeline.report_running()


def _start_workers(spark: SparkSession, modules: Sequence[str]) -> None:
    """Beside recovery, so that the first epoch finds them. Where that goes wrong, the first epoch starts them."""
    from penstock.spark.rehearsal import warm_workers

    try:
        warm_workers(spark, modules)
    except Exception as error:
        log.debug("Python workers are not started ahead: %r", error)


def _keep_warm(
    turn: threading.Event,
    spark: SparkSession,
    modules: Sequence[str],
    once: Sequence[Callable[[], None]],
    look: Callable[[], None],
) -> None:
    """Nothing that goes wrong here matters: the start itself says what is wrong."""
    from penstock.spark.rehearsal import warm_up, warm_workers

    for name in (*_HERE, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    steps: Sequence[Callable[[], None]] = (lambda: warm_up(spark, modules), *once, look)
    while not turn.is_set():
        for step in steps:
            try:
                step()
            except Exception as error:
                log.debug("a standby could not warm up: %r", error)
                if jvm_gone(error) and not turn.is_set():
                    lifeline.report_error(error, classify(error))
                    os._exit(lifeline.CRASHED)  # it could not take over any more; another one can
        lifeline.report_ready()
        steps = (lambda: warm_workers(spark, modules), look)
        turn.wait(_KEEP_WARM_SECONDS)


def writer_modules(sinks: Iterable[TwoPhaseSink]) -> list[str]:
    """Of each sink its own and, by our custom, its writer's."""
    found = {type(sink).__module__ for sink in sinks}
    return sorted(found | {f"{name.rpartition('.')[0]}.writer" for name in found if name.startswith("penstock.")})
