"""Whether the executors of a cluster can do a job's work, asked by a small job before the first query starts.

Workers must have the driver's Python (to the minor version) and its Penstock, or a task fails in its first line with a
stack trace. One task goes to every core that there is; executors that come later and differ are named when they fail.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ClusterUnavailable
from penstock.spark.executor_list import mismatch, mismatch_in
from penstock.spark.masters import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_GROUP = "penstock-executors"
_WAIT_SECONDS = 30.0  # a free worker starts an executor in 5 to 10 seconds, and in 20 on a busy machine
_POLL_SECONDS = 0.05
_ROUNDS = 3  # executors may register while others are being asked


@dataclass(frozen=True)
class Found:
    """What one Python worker says of itself; `missing` is a module that it cannot import, with the reason."""

    host: str
    python: str
    version: str | None
    missing: str | None


def check_executors(spark: SparkSession, version: str, modules: Sequence[str] = ()) -> list[Found]:
    """Ask all executors that there are, and wait for the first. `version` is the driver's Penstock; `modules` are what
    the job's sinks need. Raises `ExecutorMismatch`, or `ClusterUnavailable` where there are none. In local mode the
    workers are this very Python, and nothing is asked."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return []
    found: list[Found] = []
    for _ in range(_ROUNDS):
        before = _count(context)
        found = _ask(context, modules)
        require_alike(found, version)
        if _count(context) <= max(before, 1):
            break
    return found


def importable(names: Iterable[str]) -> list[str]:
    """Those that this process can import, the program itself aside: what it cannot, nobody else is asked for."""
    found = []
    for name in names:
        if name != "__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                found.append(name)
    return found


def require_alike(found: Sequence[Found], version: str) -> None:
    """Raise what is wrong with the first that differs."""
    own = platform.python_version_tuple()[:2]
    for one in found:
        if tuple(one.python.split(".")[:2]) != own:
            raise mismatch(f"Executors on {one.host} run Python {one.python}, the driver {platform.python_version()}.")
        if one.version not in (None, version):  # which is also why they lack what the driver's has
            raise mismatch(f"Executors on {one.host} have Penstock {one.version}, the driver {version}.")
        if one.missing is not None:
            raise mismatch(f"Executors on {one.host} cannot import what the job needs: {one.missing}.")


def _ask(context: Any, modules: Sequence[str]) -> list[Found]:
    """One task for every core. Runs in a thread of its own, so that a cluster without executors can be told from one
    that is slow."""
    result: list[list[Found]] = []
    failed: list[BaseException] = []

    def run() -> None:
        context.setJobGroup(_GROUP, "see that executors can do the job's work", interruptOnCancel=True)
        try:
            tasks = max(context.defaultParallelism, 2)
            told = context.parallelize(range(tasks), tasks).mapPartitions(_probe(modules)).collect()
            result.append([Found(*one) for one in told])
        except BaseException as error:
            failed.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    _await(thread, context)
    if failed:
        raise mismatch_in(str(failed[0])) or failed[0]
    return result[0]


def _await(thread: threading.Thread, context: Any) -> None:
    """Until the small job is done. Only a cluster that gives no executor at all is given up, for now."""
    end = time.monotonic() + _WAIT_SECONDS
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if _count(context):
            end = time.monotonic() + _WAIT_SECONDS
        elif time.monotonic() > end:
            context.cancelJobGroup(_GROUP)
            thread.join()
            raise ClusterUnavailable(
                f"The cluster at {context.master} has given the job no executor in {_WAIT_SECONDS:.0f} s; it asks for"
                f" {_asked(context)} each.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="see on the master's page whether workers are alive and have that much free; or ask for less:"
                " spark.executor.memory, spark.executor.cores, spark.cores.max.",
            )


def _count(context: Any) -> int:
    """Executors that are registered; the driver counts as one of Spark's."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _asked(context: Any) -> str:
    conf = context.getConf()
    cores = conf.get("spark.executor.cores", "")
    return f"{conf.get('spark.executor.memory', '1g')} of memory" + (f" and {cores} cores" if cores else "")


def _probe(modules: Sequence[str]) -> Callable[[Iterator[int]], Iterator[tuple[str, str, str | None, str | None]]]:
    """The function of the tasks. It travels whole, and needs nothing of ours where it runs."""

    def probe(rows: Iterator[int]) -> Iterator[tuple[str, str, str | None, str | None]]:
        import importlib
        import platform
        import socket

        version, missing = None, None
        try:
            version = importlib.import_module("penstock").__version__
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            missing = f"{type(error).__name__}: {error}"
        yield socket.gethostname(), platform.python_version(), version, missing

    return probe
