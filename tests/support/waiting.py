"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.own_time import OwnTime

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T | None],
    what: str | Callable[[], str],
    seconds: float = 60.0,
    every: float = 0.02,
    clock: Callable[[], float] | None = None,
) -> _T:
    """The first true answer of `condition`; fails after `seconds` by `clock`, saying what was waited for. By default
    that is the time that this process and those below it had: others that use the machine make no test fail."""
    clock = clock or OwnTime()
    end = clock() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if clock() > end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"after {seconds:.0f} s still waiting for {said}")
        time.sleep(every)
