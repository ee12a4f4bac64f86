"""A job of one query in its folder, on a Spark that is played: it runs, dies, is restored."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.checkpoint.history import Histories
from penstock.checkpoint.ledger import Ledger
from penstock.config.operations import Recovery
from penstock.engine.restore_point import LastRun
from penstock.failpoints import InjectedFault, hooked
from penstock.savepoints.restore import Restorer, RestoreResult
from penstock.storage.local import LocalStorage, LocalTree
from tests.support.memory_sink import MemorySink
from tests.support.small_runner import numbers
from tests.support.small_spark import SmallSpark

SPARK = cast("Any", SimpleNamespace(version="4.2.0", conf=SimpleNamespace(get=lambda _, otherwise=None: otherwise)))


class JobOnDisk(SmallSpark):
    """A job of one query, in its folder; `history` is the one that its next start goes on from."""

    def __init__(self, base: Path, name: str, sink: MemorySink, uid: str = "out") -> None:
        super().__init__(base / name / uid, sink, numbers, job=name)
        self.root, self.uid = base / name, uid
        (self.root / "queries").mkdir(parents=True, exist_ok=True)
        facts = {"version": 1, "sources": ["in"], "sinks": ["out"]}
        (self.root / "queries" / f"{uid}.json").write_text(json.dumps(facts))

    def coordinator(self, **more: Any) -> Any:
        self.spark = self.folder / self.histories.current()
        return super().coordinator(sources=("in",), **more)

    @property
    def histories(self) -> Histories:
        return Histories(LocalStorage(self.root))

    @property
    def plan(self) -> Any:
        return SimpleNamespace(
            uid=self.uid,
            frame=None,
            output_mode="append",
            positions=["in"],
            sinks={"out": self.sink},
            sources={"in": 0},
        )

    @property
    def complete(self) -> int:
        """The newest epoch that Spark has logged as complete."""
        return self.log.next_epoch()[0] - 1

    def dies_at(self, point: str, rows: int) -> None:
        """A run that reads up to `rows` and ends of a failure in its last epoch."""
        with hooked(point, die), pytest.raises(InjectedFault):
            self.run(rows)

    @property
    def generation(self) -> int:
        return Ledger(LocalStorage(self.folder / "ledger")).newest_generation()

    def restore(
        self, path: str | Path, id: str = "a", others: tuple[JobOnDisk, ...] = (), session: Any = SPARK
    ) -> RestoreResult:
        plans = {one.uid: one.plan for one in (self, *others)}
        last = LastRun(LocalTree(self.root), plans, session)
        restorer = Restorer(self.job, f"file://{self.root}", session, last)
        return restorer.restore(Recovery(path=f"file://{path}", restore_id=id * 32), plans, {})

    def lose(self, epoch: int) -> None:
        """What a power cut takes from Spark's log."""
        for folder in ("offsets", "commits"):
            (self.spark / folder / str(epoch)).unlink(missing_ok=True)


def die() -> None:
    raise InjectedFault("It dies here.", safe="-", to_do="-")
