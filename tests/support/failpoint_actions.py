"""Acting at a failpoint inside this process, with the circumstances arranged under which it is passed at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.failpoints import ONCE, POINTS, RELEASE, VARIABLE, InjectedFault, hooked
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.fault_case import Case

#: Passed only with the in-flight log.
LOGGED = [name for name in POINTS if name.startswith(("inflight.", "drain.")) or name == "task.logged"]
DRIVER = [name for name, process in POINTS.items() if process == "driver" and name not in LOGGED]
WORKER = [name for name, process in POINTS.items() if process == "worker" and name not in LOGGED]


def mostly_long(values: Iterable[str], *usual: str) -> list[Any]:
    """Parameters of a test of which only the `usual` ones run in `make test`; the others are left to `make long`."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.long) for value in values]


def failing_before(point: str) -> str | None:
    """Where an epoch must fail first, for `point` to be passed with something at stake."""
    if point.startswith("recover."):
        return "epoch.decided"  # so that recovery finds a decision that nobody carried out
    if point == "epoch.aborted":
        return "epoch.precommitted"  # so that there is an attempt to abort
    return None


@contextmanager
def at(point: str, act: Callable[[], None]) -> Iterator[threading.Event]:
    """While this lasts, the first passing of `point` calls `act`. The event tells that it has been called."""
    called = threading.Event()

    def call() -> None:
        act()
        called.set()

    before = failing_before(point)
    with ExitStack() as hooks:

        def fail() -> None:
            hooks.enter_context(hooked(point, call))
            raise InjectedFault(f"Failed at {before}, so that {point} is passed.")

        hooks.enter_context(hooked(point, call) if before is None else hooked(before, fail))
        yield called


def feed_until(passed: threading.Event, world: Case) -> None:
    """Feed rows until the point is passed. One portion is enough, unless Spark cuts it between its two partitions, so
    that no epoch has two writers."""
    for _ in range(20):
        world.source.feed(100)
        until(lambda: passed.is_set() or world.visible(), "the point to be passed, or all rows to be visible")
        if passed.is_set():
            return
    raise AssertionError("twenty portions went through, and the point was never passed")


@contextmanager
def worker_failpoints(spark: SparkSession, world: Case, points: Mapping[str, str]) -> Iterator[None]:
    """While this lasts, Python workers of `spark` have failpoints: Spark keeps workers apart by their environment. For
    queries that start meanwhile; one that runs already needs `started_anew`."""
    environment = spark.sparkContext.environment
    text = ";".join(f"{name}={action}" for name, action in points.items())
    given = {VARIABLE: text, ONCE: str(world.once), RELEASE: str(world.release)}
    environment.update(given)
    try:
        yield
    finally:
        for name in given:
            environment.pop(name, None)


@contextmanager
def started_anew() -> Iterator[None]:
    """While this lasts, the next epoch that is begun fails, upon which the job's queries start again: a query whose
    writer is part of its plan keeps the environment that its workers had when it started."""

    def fail() -> None:
        raise InjectedFault("Failed so that the queries start again.")

    with hooked("epoch.opened", fail):
        yield
