"""While a world runs: time, threads and random names of the code under test are the world's."""

from __future__ import annotations

import contextlib
import logging
import queue as real_queue
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.checkpoint import inflight as logs
from penstock.checkpoint import spark_log
from penstock.deadline import Deadline
from penstock.engine import attempt, committers, coordinator, drainer, driver, inflight, task
from penstock.ops.process import lease_holder
from penstock.sinks.files import s3
from penstock.sinks.kafka import committer as kafka
from penstock.sinks.kafka.transactions import Unsure
from penstock.sinks.sql import committer as sql

if TYPE_CHECKING:
    from tests.support.simulation.schedule import Scheduler
    from tests.support.simulation.world import World


# Arrow compresses in threads, which takes longer than all the rest of an epoch.
class _Uncompressed(pa.ipc.IpcWriteOptions):  # type: ignore[misc]
    def __init__(self, **_: Any) -> None:
        super().__init__(use_threads=False)


_READ, _open = pa.ipc.IpcReadOptions(use_threads=False), pa.ipc.open_stream


# A start looks at the same few files of Spark's log again and again.
_is_torn = lru_cache(5_000)(spark_log._is_torn)

_NO_FIELDS = contextlib.nullcontext()


def _no_fields(**_: Any) -> Any:
    """Nothing is logged, so no fields have to be bound to what is."""
    return _NO_FIELDS


class _Event:
    def __init__(self, schedule: Scheduler) -> None:
        self._schedule, self._is_set = schedule, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._schedule.wait(self.is_set, timeout)


class _Condition(contextlib.nullcontext[None]):
    """Between two places only one actor moves, so there is nothing to lock."""

    def __init__(self, schedule: Scheduler) -> None:
        super().__init__()
        self._schedule, self._told = schedule, 0

    def notify_all(self) -> None:
        self._told += 1

    def wait(self, timeout: float | None = None) -> bool:
        told = self._told
        return self._schedule.wait(lambda: self._told > told, timeout)


class _Thread:
    def __init__(
        self,
        schedule: Scheduler,
        target: Callable[..., None],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._schedule, self._body, self._name = schedule, partial(target, *args), name
        self._actor: Any = None

    def start(self) -> None:
        self._actor = self._schedule.spawn(self._body, self._name)

    def join(self, timeout: float | None = None) -> None:
        if self._actor is not None:
            self._schedule.wait(lambda: self._actor.done, timeout)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done


class _Timer:
    """A watchdog that is never needed: simulated tasks end."""

    daemon = True

    def __init__(self, *_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def cancel(self) -> None:
        pass


class _Queue:
    def __init__(self, schedule: Scheduler, size: int) -> None:
        self._schedule, self._size, self._held = schedule, size, deque[Any]()

    def put(self, item: Any, timeout: float | None = None) -> None:
        if len(self._held) >= self._size and not self._schedule.wait(lambda: len(self._held) < self._size, timeout):
            raise real_queue.Full
        self._held.append(item)

    def get(self, timeout: float | None = None) -> Any:
        if not self._held and not self._schedule.wait(lambda: bool(self._held), timeout):
            raise real_queue.Empty
        return self._held.popleft()


class InlinePool:
    """A pool of no threads: one piece of work after the other."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            value, error = work(*args), None
        except Exception as raised:
            value, error = None, raised

        def result() -> Any:
            if error is not None:
                raise error
            return value

        return SimpleNamespace(exception=lambda: error, result=result)

    def map(self, work: Callable[..., Any], *given: Sequence[Any]) -> Iterator[Any]:
        return map(work, *given)

    def shutdown(self, **_: Any) -> None:
        pass


class _UnsureHere:
    """What a process shares: each simulated one has its own."""

    def __init__(self, schedule: Scheduler) -> None:
        self._schedule = schedule

    @property
    def _own(self) -> Unsure:
        own: Unsure = self._schedule.process.memory.setdefault("unsure", Unsure())
        return own

    def add(self, ids: Any) -> None:
        self._own.add(ids)

    def __contains__(self, name: str) -> bool:
        return name in self._own

    def newest(self, prefix: str, most: int) -> list[str]:
        return self._own.newest(prefix, most)


@contextlib.contextmanager
def world_of(world: World) -> Iterator[None]:
    from tests.support.simulation.disk import DiskTree

    schedule = world.schedule
    threads = SimpleNamespace(
        Event=partial(_Event, schedule),
        Condition=partial(_Condition, schedule),
        Thread=partial(_Thread, schedule),
        Lock=contextlib.nullcontext,
        Timer=_Timer,
    )

    class GateLock:
        def __init__(self) -> None:
            self._held = False

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if self._held and not (
                blocking and schedule.wait(lambda: not self._held, timeout if timeout >= 0 else None)
            ):
                return False
            self._held = True
            return True

        def release(self) -> None:
            self._held = False

        def locked(self) -> bool:
            return self._held

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: Any) -> None:
            self.release()

    gates = SimpleNamespace(**{**vars(threads), "Lock": GateLock})
    tree = lambda where: DiskTree(world.disk, schedule, where)  # noqa: E731
    clock = lambda: schedule.now  # noqa: E731
    changes: list[tuple[Any, str, Any]] = [
        (time, "monotonic", clock),
        (time, "time", clock),
        (time, "sleep", lambda seconds: schedule.sleep(seconds)),
        (secrets, "token_hex", world.token),
        (driver, "bound", _no_fields),
        (drainer, "bound", _no_fields),
        (spark_log, "_is_torn", _is_torn),
        (drainer, "threading", threads),
        (drainer, "ThreadPoolExecutor", InlinePool),
        (logs, "threading", threads),
        (logs, "task_tree", tree),
        (inflight, "make_folder", lambda _: None),
        (attempt, "threading", gates),
        (task, "threading", threads),
        (task, "queue", SimpleNamespace(Queue=partial(_Queue, schedule), Full=real_queue.Full, Empty=real_queue.Empty)),
        (lease_holder, "threading", threads),
        (committers, "ThreadPoolExecutor", InlinePool),
        (sql, "ThreadPoolExecutor", InlinePool),
        (s3, "ThreadPoolExecutor", InlinePool),
        (kafka, "UNSURE", _UnsureHere(schedule)),
        (coordinator, "Attempt", lambda **given: attempt.Attempt(**given, opened=schedule.now)),
    ]
    changes += [(pa.ipc, "IpcWriteOptions", _Uncompressed), (pa.ipc, "open_stream", partial(_open, options=_READ))]
    changes.append((uuid, "uuid4", lambda: SimpleNamespace(hex=world.token(16)[::-1])))
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    usual: Any = Deadline.__init__.__kwdefaults__
    disabled = logging.root.manager.disable
    if disabled < logging.CRITICAL:
        logging.disable(logging.CRITICAL)
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        usual["clock"] = clock
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)
        usual["clock"] = time.monotonic
        if disabled < logging.CRITICAL:
            logging.disable(disabled)
