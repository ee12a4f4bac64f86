"""A driver that waits for its turn: everything that can be done before is done, and nothing is touched.

`take_turn` stands at the beginning of `Job.run` and of the drop-in: before the job is in the registry, before a port is
opened, a generation registered, a checkpoint or a sink written to. The program has run up to there, so whatever it
does before is done in each driver. In one that nobody told to wait it returns at once.
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

from penstock.process import lifeline
from penstock.process.error_class import classify, jvm_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.contracts.sink import TwoPhaseSink
    from penstock.contracts.source import Source

log = logging.getLogger("penstock")

_KEEP_WARM_SECONDS = 40.0  # Spark ends Python workers that had nothing to do for a minute
#: What a start loads in this process besides what a program has loaded when it comes to `run`.
_HERE = ("uvicorn", "penstock.server.job_app", "penstock.savepoints.restore")
#: And what each Python worker does.
_WORKER = ("penstock.epoch.task", "penstock.epoch.inflight.tee")


def take_turn(
    spark: SparkSession,
    sinks: Iterable[TwoPhaseSink],
    sources: Mapping[str, Source] | None = None,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Return when this driver is the one that runs the job; meanwhile keep warm what it will need. `look` asks other
    systems whether they are there, and so opens what connections it can. A standby is ended by SIGTERM."""
    if not lifeline.is_standby():
        return
    modules = [*_WORKER, *writer_modules(sinks)]
    warm: list[Callable[[], None]] = [partial(source.warm_up, spark, uid) for uid, source in (sources or {}).items()]
    arguments = (spark, modules, warm, look)
    threading.Thread(target=_keep_warm, args=arguments, name="penstock-standby", daemon=True).start()
    lifeline.await_turn()


def tell_running(event: Mapping[str, Any]) -> None:
    """A listener that tells the supervisor when the job runs: only then it is time for a standby."""
    if event.get("event") == "recovered":
        lifeline.tell_running()


def _keep_warm(
    spark: SparkSession, modules: Sequence[str], once: Sequence[Callable[[], None]], look: Callable[[], None]
) -> None:
    """Nothing that goes wrong here matters: the start itself says what is wrong."""
    from penstock.spark.rehearsal import warm_up, warm_workers

    for name in (*_HERE, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    steps: Sequence[Callable[[], None]] = (lambda: warm_up(spark, modules), *once, look)
    while lifeline.is_standby():
        for step in steps:
            try:
                step()
            except Exception as error:
                log.debug("a standby could not warm up: %r", error)
                if jvm_gone(error) and lifeline.is_standby():
                    lifeline.tell_error(error, classify(error))
                    os._exit(lifeline.CRASHED)  # it could not take over any more; another one can
        lifeline.tell_ready()
        steps = (lambda: warm_workers(spark, modules), look)
        lifeline.await_turn(_KEEP_WARM_SECONDS)


def writer_modules(sinks: Iterable[TwoPhaseSink]) -> list[str]:
    """Of each sink its own and, by our custom, its writer's."""
    found = {type(sink).__module__ for sink in sinks}
    return sorted(found | {f"{name.rpartition('.')[0]}.writer" for name in found if name.startswith("penstock.")})
