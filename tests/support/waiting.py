"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T | None], what: str | Callable[[], str], seconds: float = 60.0, every: float = 0.02
) -> _T:
    """The first true answer of `condition`; fails after `seconds`, saying what was waited for."""
    end = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"after {seconds:.0f} s still waiting for {said}")
        time.sleep(every)
