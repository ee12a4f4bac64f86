"""What Spark will write of a finished batch, known before it does, so that recovery can complete Spark's log: the
watermark that the batch leads to, computed as Spark computes it, and in format 2 of the state the ids of its files.

Spark keeps, for each `EventTimeWatermark` node of the plan, the highest event time seen minus the delay; the query's
watermark is their minimum (or maximum, by `multipleWatermarkPolicy`) and never goes back. The policy is the one that
the query was first started with, whatever the session says now: Spark keeps it in every barrier, and obeys that.

Our number is not taken on trust: each epoch compares the one before with what Spark then wrote, and after a difference
says None, "not known", upon which recovery proves an epoch by replay instead of completing the log.

An operator collects the ids in an accumulator. Of several runs of a partition Spark takes the first, so before a second
attempt at an epoch they are emptied: the state that goes on is then that of the rows that were decided.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.checkpoint.decision import StateIds
from penstock.checkpoint.spark_log import Barrier
from penstock.spark.query import items

_NODE = "EventTimeWatermarkExec"
_WRITER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


class WatermarkTracker:
    _choose: Callable[[Iterable[int]], int]

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {}
        self.plan: Any = None  # the one that `advance` saw last
        self.state_ids: StateIds | None = None  # after its batch; None in format 1, or if they are not known
        self._global: int | None = None
        self._trusted = True
        self._has_nodes: bool | None = None

    @property
    def needed(self) -> bool:
        """Whether the plan has watermarks at all; without, the answer is what it was at the start."""
        return bool(self._has_nodes)

    @property
    def unchanging(self) -> bool:
        """Whether the plan is known to have neither watermarks nor ids of state: `advance` needs no plan then."""
        return self._has_nodes is False and not self.state_ids

    @property
    def each(self) -> list[int]:
        """By the order of `plan`'s `watermark_nodes`: what each leads to by itself; 0 where it has seen no row."""
        return list(self._nodes.values())

    def start(self, barrier: Barrier) -> None:
        """An epoch's barrier; only that of the first one that this run executes counts."""
        if self._global is None:
            self._global = int(barrier.metadata.get("batchWatermarkMs", 0))
            # A barrier without the setting is of a Spark that had no policy but the lowest.
            policy = str(barrier.metadata.get("conf", {}).get(_POLICY))
            self._choose = max if policy.lower() == "max" else min

    def verify(self, committed: int | None) -> None:
        """Compare with what Spark wrote for the epoch before."""
        if committed is not None and self._global is not None and committed != self._global:
            self._trusted = False

    def advance(self, executed_plan: Any, spark: Any = None) -> int | None:
        """The watermark after the batch whose plan (a JVM object; None: not to be had, or not needed) was just
        executed."""
        if self.unchanging:
            return self._global
        self.state_ids = None
        if executed_plan is None:
            return None
        if (writers := _writers(executed_plan)) is not None:
            self.state_ids = dict(_ids(node, spark) for node in writers)
        self.plan, nodes = executed_plan, list(watermark_nodes(executed_plan))
        self._has_nodes = bool(nodes)
        for index, node in enumerate(nodes):
            stats = node.eventTimeStats().value()
            if stats.count() > 0:
                self._nodes[index] = max(self._nodes.get(index, 0), stats.max() - node.delayMs())
            else:
                self._nodes.setdefault(index, 0)
        if self._nodes:
            self._global = max(self._global or 0, self._choose(self._nodes.values()))
        return self._global if self._trusted else None


def watermark_nodes(plan: Any) -> Iterator[Any]:
    return (node for node in _nodes(plan) if node.getClass().getSimpleName() == _NODE)


def forget_ids(plan: Any) -> None:
    """Call before the plan of a batch runs once more."""
    for node in _writers(plan) or ():
        node.checkpointInfoAccumulator().reset()


def _writers(plan: Any) -> list[Any] | None:
    """The operators of an executed plan that write state; None in format 1."""
    if plan.conf().stateStoreCheckpointFormatVersion() < 2:
        return None
    kind = plan.getClass().getClassLoader().loadClass(_WRITER)
    return [node for node in _nodes(plan) if kind.isInstance(node)]


def _ids(node: Any, spark: Any) -> tuple[str, list[list[str]]]:
    """The operator's number; and its ids, by partition."""
    from penstock.spark_state.work_session import to_json

    partitions = json.loads(to_json(spark, node.getStateStoreCheckpointInfo()))
    return str(node.stateInfo().get().operatorId()), [info["stateStoreCkptId"] for info in partitions]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)
