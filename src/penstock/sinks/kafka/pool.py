"""Producers that a Python worker keeps between epochs: opening one takes 80 ms and more, reusing one no time.

After pre_commit a producer is *parked*: its transaction is prepared, and only the driver may end it. It is reused
once the driver's hints name that very transaction (id and sequence) as ended:

| hints | so the producer |
|---|---|
| committed | confirms with its own commit (same producer id and epoch, the broker does nothing more) and is free |
| aborted | aborts, likewise, and is free |
| either, but a request of its own got no answer and was repeated | is freed locally: it may still arrive |
| unsure | is freed locally, whatever else they say: a request for it got lost and may arrive at any time |
| nothing | stays parked: the transaction may be decided, and aborting it would lose promised rows |
| nothing, and its run is older than this one | is freed locally, its transaction left to the driver |

Where tasks are more than cores, each leaves a producer parked, and the next task needs a new one. From the third on,
more are opened beside it. Each has a name of its own, which nothing has used before: there is nothing to fence.

The pool belongs to one process. A forked child drops the inherited producers without touching them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.sinks.kafka.producer import Producer

#: Producers a worker keeps; each has a few threads and connections. Beyond it the least recently used is freed.
LIMIT = 64


@dataclass(frozen=True)
class Key:
    """Which producers are interchangeable: same name (none without transactions), same run, same settings."""

    prefix: str
    generation: int
    settings: tuple[tuple[str, str], ...] = field(repr=False)

    def transactional_id(self) -> str:
        """A new name. The random part makes each incarnation's outcome provable; the driver finds it by the prefix."""
        return self.prefix and f"{self.prefix}-g{self.generation:06d}-{uuid.uuid4().hex[:12]}"


@dataclass(eq=False)
class _Parked:
    key: Key
    producer: Producer
    sequence: int | None  # the prepared transaction; None when free


class Pool:
    """One process's producers. Thread-safe; a producer has one user at a time."""

    def __init__(self, factory: Callable[[Mapping[str, str], str], Producer] = Producer, limit: int = LIMIT) -> None:
        self._factory, self._limit = factory, limit
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: list[_Parked] = []  # least recently used first
        self._opening: list[threading.Thread] = []

    def acquire(self, key: Key, hints: Mapping[str, Any]) -> Producer:
        """A producer with no transaction open: a kept one if the hints free one, else a new one."""
        while (parked := self._take(key, hints)) is not None:
            producer = parked.producer
            if parked.sequence is None or (
                producer.commit() if _ended(parked, hints) == "committed" else producer.abort()
            ):
                producer.after = hints.get("started", {}).get(producer.transactional_id, producer.after)
                return producer
            producer.destroy()
        self._open_ahead(key)
        return self._factory(dict(key.settings), key.transactional_id())

    def park(self, key: Key, producer: Producer) -> None:
        """Keep it with its transaction prepared; `release` keeps it free."""
        self._keep(_Parked(key, producer, producer.sequence))

    def release(self, key: Key, producer: Producer) -> None:
        self._keep(_Parked(key, producer, None))

    def reclaim(self, producer: Producer) -> bool:
        """Take a parked one back; False if it is gone."""
        with self._lock:
            for parked in self._idle:
                if parked.producer is producer:
                    self._idle.remove(parked)
                    return True
        return False

    def clear(self) -> None:
        """Free all, leaving their transactions as they are."""
        for thread in self._opening:
            thread.join()
        with self._lock:
            self._after_fork()
            freed, self._idle = self._idle, []
        for parked in freed:
            parked.producer.destroy()

    def __len__(self) -> int:
        return len(self._idle)

    def _take(self, key: Key, hints: Mapping[str, Any]) -> _Parked | None:
        with self._lock:
            self._after_fork()
            unsure = hints.get("unsure", {})
            useless = [
                p
                for p in self._idle
                if (p.key.prefix == key.prefix and p.key.generation < key.generation)
                or p.producer.transactional_id in unsure
            ]
            for parked in useless:
                self._idle.remove(parked)
            usable = [p for p in self._idle if p.key == key and (p.sequence is None or _ended(p, hints))]
            # The most recently used has the warmest connections; the others may age out.
            newest = usable[-1] if usable else None
            if newest is not None:
                self._idle.remove(newest)
        for parked in useless:
            parked.producer.destroy()
        return newest

    def _open_ahead(self, key: Key) -> None:
        """As many as are parked with transactions that the driver has not ended, but at most an eighth of the limit."""
        with self._lock:
            self._opening = [thread for thread in self._opening if thread.is_alive()]
            parked = sum(parked.key == key for parked in self._idle)
            more = min(parked, self._limit // 8) - len(self._opening) if parked > 1 else 0
            for _ in range(more):
                thread = threading.Thread(target=self._open, args=(key,), name="penstock-producers", daemon=True)
                thread.start()
                self._opening.append(thread)

    def _open(self, key: Key) -> None:
        with contextlib.suppress(Exception):  # a task that opens one itself learns why not
            self.release(key, self._factory(dict(key.settings), key.transactional_id()))

    def _keep(self, parked: _Parked) -> None:
        with self._lock:
            self._after_fork()
            self._idle.append(parked)
            surplus = self._idle[: max(0, len(self._idle) - self._limit)]
            del self._idle[: len(surplus)]
        for old in surplus:
            old.producer.destroy()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            for parked in self._idle:
                parked.producer.abandon()
            self._idle.clear()
            self._pid = os.getpid()


def _ended(parked: _Parked, hints: Mapping[str, Any]) -> str | None:
    for how in ("committed", "aborted"):
        if hints.get(how, {}).get(parked.producer.transactional_id) == parked.sequence:
            return how
    return None


#: This process's pool. Its producers' threads call into Python (`librdkafka.watcher`), so they end before it does.
POOL = Pool()
atexit.register(POOL.clear)
