"""One sink, its in-flight log on disk, and drivers that come and go: the world of the tests of log and drainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpoint.decision import Committable, Outcome
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.contracts.sink import SinkScope, WriterScope
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.inflight import InFlight
from penstock.engine.task import Route, committable, write_rows
from penstock.events import Events
from penstock.storage.local import LocalStorage
from tests.support.memory_sink import MemorySink


def batch(*numbers: int) -> pa.RecordBatch:
    values = pa.array([f"row {number}" for number in numbers])
    return pa.RecordBatch.from_arrays([values, pa.array(numbers, pa.int64())], names=["value", HASH_COLUMN])


def rows(*numbers: int) -> list[str]:
    return [f"row {number}" for number in numbers]


def scope(partition: int = 0, epoch: int = 1) -> WriterScope:
    return WriterScope(SinkScope("job", "out", 1), epoch, 1, partition, 7)


class World:
    """Each `driver` is the in-flight log of another run of the job."""

    def __init__(self, folder: Path, **checkpoints: Any) -> None:
        self.folder, self.sink = folder, MemorySink()
        self.checkpoints = Checkpoints(**{"unaligned": True, "aligned_timeout": 60, **checkpoints})
        self.events: list[Any] = []
        self.generation = 0
        self.made: list[InFlight] = []

    @property
    def registered(self) -> Ledger:
        """The query's ledger: where its runs register."""
        return Ledger(LocalStorage(self.folder.parent / f"{self.folder.name}-ledger"))

    def arguments(self) -> dict[str, Any]:
        events = Events()
        events.listen(self.events.append)
        return {
            "job": "job",
            "query": "query",
            "sinks": {"out": self.sink},
            "location": str(self.folder),
            "storage": LocalStorage(self.folder),
            "ledger": self.registered,
            "ledger_of": lambda where: Ledger(LocalStorage(Path(where))),
            "events": events,
            "checkpoints": self.checkpoints,
        }

    def driver(self) -> InFlight:
        self.generation = self.registered.register({})
        made = InFlight(**self.arguments())
        made.open("id", self.generation)
        self.made.append(made)
        return made

    def epoch(self, driver: InFlight, epoch: int, *numbers: int, route: Route = Route.LOG) -> Committable:
        """Log one writer's rows for an epoch and hand them over; what is visible then is the drainer's affair."""
        writing = replace(driver.writing("out", 0.0), route=route)
        where = replace(scope(epoch=epoch), sink=SinkScope("job", "out", self.generation))
        one = committable("out", write_rows(self.sink, where, iter([batch(*numbers)]), writing))
        driver.commit(epoch, [one], lambda *_: {one.id: Outcome.UNKNOWN})
        return one

    def drained(self, driver: InFlight) -> list[Any]:
        driver.start()
        driver.wait_empty(lambda: False)
        return self.sink.visible

    def close(self) -> None:
        """Whatever the sink was made to do is over, and nobody delivers any more."""
        self.sink.open.set()
        self.sink.away = False
        for driver in self.made:
            driver.close()
