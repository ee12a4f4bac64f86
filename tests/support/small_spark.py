"""Spark's part of a query, played in this process: its log, its state, its epochs; everything else is the real thing.

It keeps the files that Spark keeps, under the same names, and like Spark it syncs none of them, creates them by a
rename that overwrites, and reads positions when it starts only: from then on it goes by its memory. Each epoch reads
some more of the numbers 0, 1, 2, …, hands them to real writers of a real sink, half to each, and adds them up: the sum
is its state. A barrier that has to be cut anew is cut elsewhere, so that whoever writes an epoch twice writes other
rows.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import TwoPhaseSink, WriterScope
from penstock.engine.checksum import HASH_COLUMN
from penstock.engine.coordinator import Coordinator
from penstock.engine.inflight import InFlight
from penstock.engine.preparation import EpochOutputs
from penstock.engine.task import committable, write_rows
from penstock.events import Events
from penstock.storage.local import LocalStorage

WRITERS = 2


class _Plan:
    """An executed plan without watermarks."""

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return "ProjectExec"

    def conf(self) -> Any:
        return self

    def stateStoreCheckpointFormatVersion(self) -> int:  # noqa: N802
        return 1

    def children(self) -> Any:
        return self

    def size(self) -> int:
        return 0


class _Frame:
    """As much of a DataFrame as the watchdog asks for."""

    @property
    def sparkSession(self) -> Any:  # noqa: N802
        return self

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        return self

    def getLocalProperty(self, _: str) -> None:  # noqa: N802
        return None

    @property
    def _jsparkSession(self) -> Any:  # noqa: N802
        return self

    def leafNodeDefaultParallelism(self) -> int:  # noqa: N802
        return 2


class _Running:
    """The positions that Spark holds in memory."""

    def __init__(self, spark: SmallSpark) -> None:
        self._spark = spark

    def starts_at(self) -> str:
        return self._spark.texts.get(self._spark.epoch - 1) or barrier_text(None)

    def ends_at(self) -> str:
        return self._spark.texts[self._spark.epoch]


def barrier_text(end: int | None, watermark: int = 0) -> str:
    """An `offsets/N` of one source with one partition, read up to `end`; None: not read yet."""
    metadata = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {}})
    return f"v1\n{metadata}\n" + ("-" if end is None else f'{{"t":{{"0":{end}}}}}')


class SmallSpark:
    """One query over one checkpoint, run as often as you like: each `run` is a start of the job."""

    def __init__(
        self,
        folder: Path,
        sink: TwoPhaseSink,
        rows: Callable[[int, int], pa.RecordBatch],
        *,
        job: str = "",
        stateful: bool = False,
        **checkpoints: Any,
    ) -> None:
        self.folder, self.sink, self._rows, self._stateful = folder, sink, rows, stateful
        self.job = job or f"job-{uuid4().hex[:8]}"
        self.checkpoints = Checkpoints(**checkpoints)
        self.spark = folder / "spark"
        self.epoch = 0  # the one under way
        self.actions: list[str] = []
        self.events: list[Any] = []
        self.memory: dict[int, int] = {}  # where the epochs of this start end
        self.texts: dict[int, str] = {}  # and their barriers
        self._cuts = itertools.count()
        self._serial = itertools.count()

    # One start of the job

    def run(self, until: int) -> None:
        """Recover, then run epochs until the first `until` numbers are read."""
        coordinator = self.coordinator()
        try:
            self.actions.append(coordinator.recover().action)
            self._query(coordinator, until)
            coordinator.drain(lambda: coordinator.failure is not None)
            if coordinator.failure is not None:
                raise coordinator.failure
        finally:
            coordinator.close()

    def coordinator(self, **more: Any) -> Coordinator:
        """Of another start; `more` are arguments of its."""
        events = Events()
        events.listen(self.events.append)
        location = self.folder / "inflight"
        logged = self.checkpoints.logged or location.exists()
        ledger = Ledger(LocalStorage(self.folder / "ledger"))
        inflight = InFlight(
            job=self.job,
            query="out",
            sinks={"out": self.sink},
            location=str(location),
            storage=LocalStorage(location),
            ledger=ledger,
            ledger_of=lambda where: Ledger(LocalStorage(Path(where))),
            events=events,
            checkpoints=self.checkpoints,
        )
        usual = {
            "job": self.job,
            "query": "out",
            "sinks": {"out": self.sink},
            "sources": (),
            "ledger": ledger,
            "log": SparkLog(LocalStorage(self.spark)),
            "events": events,
            "body": self._body,
            "executed_plan": _Plan,
            "running": _Running(self),
            "checkpoints": self.checkpoints,
            "inflight": inflight if logged else None,
        }
        return Coordinator(**{**usual, **more})

    @property
    def log(self) -> SparkLog:
        return SparkLog(LocalStorage(self.spark))

    # As Spark does

    def _query(self, coordinator: Coordinator, until: int) -> None:
        if not (self.spark / "metadata").exists():
            self.write("metadata", json.dumps({"id": str(uuid4())}))
        json.loads((self.spark / "metadata").read_text())
        epoch, self.memory, self.texts = self._newest("offsets"), {}, {}
        if epoch < 0:
            for folder in ("offsets", "commits", "state"):
                assert not any((self.spark / folder).glob("*")), f"Spark refuses: {folder} is not empty on batch 0"
            epoch = 0
        elif self._newest("commits") == epoch:
            self._remember(epoch)
            epoch += 1
        elif epoch > 0:
            self._remember(epoch - 1)
        while True:
            start = self.memory[epoch - 1] if epoch else 0
            if not (self.spark / f"offsets/{epoch}").exists():
                if start >= until:
                    return
                # Never at the same place twice.
                self.cut(epoch, min(until, start + 4 + next(self._cuts) % 3))
            elif epoch not in self.memory:
                self._remember(epoch)
            self.epoch = epoch
            coordinator(_Frame(), epoch)  # type: ignore[arg-type]
            self.write(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":0}')
            epoch += 1

    def cut(self, epoch: int, end: int) -> None:
        """The epoch reads up to `end`."""
        self.memory[epoch], self.texts[epoch] = end, self.barrier(epoch, end)
        self.write(f"offsets/{epoch}", self.texts[epoch])

    def barrier(self, epoch: int, end: int) -> str:
        """`offsets/N` of an epoch that reads up to `end`."""
        return barrier_text(end)

    def _remember(self, epoch: int) -> None:
        self.memory[epoch] = self.position(epoch)
        self.texts[epoch] = (self.spark / f"offsets/{epoch}").read_text()

    def _body(self, _: Any, outputs: EpochOutputs) -> None:
        epoch = outputs.epoch
        start, end = self.memory[epoch - 1] if epoch else 0, self.memory[epoch]
        if self._stateful:
            before = int((self.spark / f"state/0/0/{epoch}.delta").read_text()) if epoch else 0
            assert before == sum(range(start)), f"the state before epoch {epoch} is another one"
        middle = (start + end) // 2
        for writer, (first, last) in enumerate(((start, middle), (middle, end))):
            batch = self._rows(first, last)
            hashes = pa.array([number * 7919 + 13 for number in range(first, last)], pa.int64())
            batch = pa.RecordBatch.from_arrays([*batch.columns, hashes], names=[*batch.schema.names, HASH_COLUMN])
            assignment = outputs.assignments.of("out")
            serial = next(self._serial)
            scope = WriterScope(assignment.scope, epoch, assignment.attempt, writer, serial, assignment.hints)
            report = write_rows(self.sink, scope, iter([batch] if len(batch) else []), assignment.writing)
            outputs.committables.append(committable("out", report))
        outputs._written.add("out")
        if self._stateful:
            self.write(f"state/0/0/{epoch + 1}.delta", str(sum(range(end))))

    def position(self, epoch: int) -> int:
        """Where the log says that the epoch ends."""
        barrier = self.log.barrier(epoch)
        assert barrier is not None, f"Spark finds no offsets/{epoch}"
        return int(barrier.offsets[0]["t"]["0"])

    def write(self, name: str, text: str) -> None:
        """Aside, and renamed; never synced."""
        target = self.spark / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{next(self._serial)}.tmp")
        aside.write_text(text)
        os.replace(aside, target)

    def _newest(self, folder: str) -> int:
        try:
            names = os.listdir(self.spark / folder)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)
