"""A user's function on its way to a task, which hardly ever calls it.

Only the driver writes, except in mode at_least_once. So a function is unpickled where it is first called, not before:
tasks need neither its module nor what it has captured. One that cannot be pickled at all, because it holds a
connection, still works in the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from penstock.errors import ConfigurationError


class Carried:
    """A function as bytes, or why there are none."""

    def __init__(self, data: bytes | None, why: str = "") -> None:
        self._data, self._why = data, why
        self._function: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._function is None:
            self._function = self._load()
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Carried, (self._data, self._why))

    def _load(self) -> Callable[..., Any]:
        try:
            if self._data is not None:
                return pickle.loads(self._data)  # type: ignore[no-any-return]  # noqa: S301 - from our own driver
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"A function of WriteAheadSink cannot be brought to a task: {self._why}.",
            safe="nothing of this epoch was written by this task.",
            to_do="define it in a module that tasks can import, let it open its connection itself; or use mode "
            "exactly_once, in which only the driver calls it.",
        )


def carried(function: Callable[..., Any] | None) -> Carried | None:
    """`function`, ready to be pickled whatever it holds."""
    if function is None or isinstance(function, Carried):
        return function
    from pyspark import cloudpickle

    try:
        return Carried(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    except Exception as error:
        return Carried(None, f"{type(error).__name__}: {error}")
