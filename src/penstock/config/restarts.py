"""Between options and a `RestartStrategy`, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.restart_options import EXPONENTIAL, FIXED, NONE, RATE
from penstock.config.restart_strategy import RestartStrategy


def build(kind: str, values: Mapping[str, Any]) -> RestartStrategy:
    """The strategy that the options describe, by their names in the registry; other strategies' are left out."""
    mine = {name.removeprefix(f"{kind}."): value for name, value in values.items() if name.startswith(f"{kind}.")}
    if kind == NONE:
        return RestartStrategy.none()
    if kind == FIXED:
        return RestartStrategy.fixed_delay(**mine)
    if kind == RATE:
        return RestartStrategy.failure_rate(**mine)
    return RestartStrategy.exponential_delay(**mine)


def parts_of(strategy: RestartStrategy) -> dict[str, Any]:
    """The options that describe a strategy of the code's."""
    if strategy.attempts == 0:
        return {"type": NONE}
    if strategy.interval is not None:
        parts = {"max_failures": strategy.attempts, "interval": strategy.interval, "delay": strategy.initial}
        return {"type": RATE, **{f"{RATE}.{name}": value for name, value in parts.items()}}
    if strategy.reset_after == float("inf"):
        return {"type": FIXED, f"{FIXED}.attempts": strategy.attempts, f"{FIXED}.delay": strategy.initial}
    names = ("initial", "maximum", "multiplier", "reset_after", "jitter", "attempts")
    return {"type": EXPONENTIAL, **{f"{EXPONENTIAL}.{name}": getattr(strategy, name) for name in names}}
