"""Nodes of an executed plan as Spark shows them through py4j, as far as a watermark needs them."""

from __future__ import annotations

from typing import Any


class Children:
    def __init__(self, nodes: tuple[Any, ...]) -> None:
        self._nodes = nodes

    def size(self) -> int:
        return len(self._nodes)

    def apply(self, index: int) -> Any:
        return self._nodes[index]


class Node:
    """A node of an executed plan, as py4j shows it."""

    def __init__(self, *children: Any, name: str = "ProjectExec") -> None:
        self._children, self._name = Children(children), name

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self._name

    def children(self) -> Children:
        return self._children

    def conf(self) -> Any:
        return self

    def stateStoreCheckpointFormatVersion(self) -> int:  # noqa: N802
        return 1


class Mark(Node):
    """A watermark node: the highest event time of the batch (None: it saw no row) and the delay."""

    def __init__(self, highest: int | None, delay: int = 10, *children: Any) -> None:
        super().__init__(*children, name="EventTimeWatermarkExec")
        self._highest, self._delay = highest, delay

    def eventTimeStats(self) -> Any:  # noqa: N802
        return self

    def value(self) -> Any:
        return self

    def count(self) -> int:
        return 0 if self._highest is None else 1

    def max(self) -> int:
        assert self._highest is not None
        return self._highest

    def delayMs(self) -> int:  # noqa: N802
        return self._delay
