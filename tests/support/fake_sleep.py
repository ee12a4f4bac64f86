"""A module's own sleep, replaced without touching anybody else's: threads that other tests left may still sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest


class _Time:
    def __init__(self, sleep: Callable[[float], Any]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def sleeping(monkeypatch: pytest.MonkeyPatch, module: str, sleep: Callable[[float], Any]) -> None:
    """In `module`, which imports `time`, `time.sleep` is `sleep`."""
    monkeypatch.setattr(f"{module}.time", _Time(sleep))


def record_pauses(monkeypatch: pytest.MonkeyPatch, *modules: str) -> list[float]:
    """In these modules nobody waits; how long they would have, in order."""
    waited: list[float] = []
    for module in modules:
        sleeping(monkeypatch, module, waited.append)
    return waited
