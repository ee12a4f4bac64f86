"""What explorations share: every state that can be reached is visited once, and coroutines are stepped without being
copied."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.engine.protocol import ProtocolStop
from penstock.errors import PenstockError

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class Violation(Exception):
    """The protocol did, or allowed, what it must not; `trace` is how it came to that."""

    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join(("", *self.trace, f"⇒ {self.args[0]}"))


class Moment:
    """A coroutine after a history of answers. Coroutines cannot be copied, so it is run again from its beginning,
    once for each history: the same answers lead to the same object, and moments compare by identity."""

    def __init__(self, make: Callable[[], Generator[Any, Any, Any]], history: tuple[Any, ...] = ()) -> None:
        self._make, self._history, self._after = make, history, dict[Any, Moment]()
        self.action: Any = None
        self.result: Any = None
        self.stop: Any = None
        coroutine = make()
        try:
            action = next(coroutine)
            for answer in history:
                action = coroutine.send(answer)
            self.action = action
        except StopIteration as end:
            self.result = end.value
        except (ProtocolStop, PenstockError) as stop:
            self.stop = stop
        else:
            self._leaves_on_error(coroutine)

    def then(self, answer: Any) -> Moment:
        key = tuple(answer.items()) if isinstance(answer, dict) else answer
        if key not in self._after:
            self._after[key] = Moment(self._make, (*self._history, answer))
        return self._after[key]

    def _leaves_on_error(self, coroutine: Generator[Any, Any, Any]) -> None:
        try:
            coroutine.throw(OSError("storage failed"))
        except OSError:
            return
        raise Violation(f"goes on after {self.action} has failed")


def walk(first: S, moves: Callable[[S], Iterable[tuple[T, S]]], told: Callable[[T], str]) -> int:
    """Visit every state, breadth first; returns their number. A `Violation` that `moves` raises gets a shortest trace
    of what led to it."""
    with _without_collector():
        came_from: dict[S, tuple[S, T] | None] = {first: None}
        waiting = deque([first])
        while waiting:
            state = waiting.popleft()
            try:
                for step, after in moves(state):
                    if after not in came_from:
                        came_from[after] = (state, step)
                        waiting.append(after)
            except Violation as violation:
                trace: list[str] = []
                before = came_from[state]
                while before:
                    trace.append(told(before[1]))
                    before = came_from[before[0]]
                violation.trace = (*reversed(trace), *violation.trace)
                raise
        return len(came_from)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of tuples without a cycle: the collector would only walk through them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
