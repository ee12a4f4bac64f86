"""A query of a job on a Spark that is played: the real runner, coordinator, ledger and log over `SmallSpark`."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.checkpoint import layout
from penstock.checkpoint.spark_log import SparkLog
from penstock.config import Checkpoints
from penstock.contracts.sink import TwoPhaseSink
from penstock.engine import query as module
from penstock.engine import streaming
from penstock.engine.query import QueryRunner
from penstock.events import Events
from tests.support.small_spark import SmallSpark, barrier_text
from tests.support.waiting import until


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


class TimedSpark(SmallSpark):
    """Each number is an event time in seconds; the watermark is that of the newest one."""

    def __init__(self, folder: Path, sink: TwoPhaseSink, **checkpoints: Any) -> None:
        super().__init__(folder, sink, numbers, **checkpoints)
        self.there = 0  # numbers that the source has
        self.commit_version = "v1"

    def write(self, name: str, text: str) -> None:
        folder, _, epoch = name.partition("/")
        if folder == "commits":
            watermark = max(self.barrier_watermark(int(epoch)), self.position(int(epoch)) * 1000)
            text = f'{self.commit_version}\n{{"nextBatchWatermarkMs":{watermark}}}'
        super().write(name, text)

    def restore(self) -> None:
        """As a restore does: a copy, with an id of its own, in the folder of a new history."""
        self.spark = Path(shutil.copytree(self.spark, self.spark.with_name(layout.history(uuid4().hex[:12]))))
        self.write("metadata", json.dumps({"id": str(uuid4())}))

    def barrier(self, epoch: int, end: int) -> str:
        return barrier_text(end, self.log.closed_up_to(epoch - 1) or 0)

    def barrier_watermark(self, epoch: int) -> int:
        barrier = self.log.barrier(epoch)
        return -1 if barrier is None else int(barrier.metadata["batchWatermarkMs"])

    def start(self, coordinator: Any) -> PlayedQuery:
        return PlayedQuery(lambda: self._query(coordinator, self.there))


class PlayedQuery:
    """Spark's query: runs what is there, then waits for more."""

    runId = "run"  # noqa: N815

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._stopped = run, threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stopped.wait(0.005):
                self._run()
        except BaseException as error:
            self._error = error

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class SmallRunner(QueryRunner):
    """`queries` are those of Spark's that it has started."""

    def __init__(self, spark: TimedSpark, uid: str = "out") -> None:
        plan = SimpleNamespace(
            uid=uid,
            bounded=False,
            aside=None,
            ends_with_what_is_there=False,
            positions=(),
            sources={},
            sinks={"out": spark.sink},
            finished_at=lambda _: False,
            publish=lambda job, barrier: None,
        )
        self.spark = spark
        self.ended = threading.Event()
        self.queries: list[PlayedQuery] = []
        super().__init__("job", plan, None, Checkpoints(storage="/"), Events(), self.ended.set)  # type: ignore[arg-type]

    def _spark_log(self) -> SparkLog:
        return self.spark.log

    @property
    def folder(self) -> str:
        return "storage/job/out"

    def _new_coordinator(self, *_: Any) -> Any:
        coordinator = self.spark.coordinator()
        coordinator._previous, coordinator._on_complete = self._generation, self._on_complete
        return coordinator

    def began(self, coordinator: Any) -> PlayedQuery:
        self.queries.append(self.spark.start(coordinator))
        return self.queries[-1]

    @contextmanager
    def running(self, rows: int) -> Iterator[SmallRunner]:
        """Until all numbers below `rows` are complete, and while this lasts; then at rest."""
        self.spark.there = rows
        self.start()
        try:
            until(lambda: not self.alive or self._reads_all(rows), lambda: f"all rows: {self.error}")
            yield self
        finally:
            self.stop()
            until(lambda: not self.alive, "the end of the query")
        if self.error is not None:
            raise self.error

    def _reads_all(self, rows: int) -> bool:
        epoch = self.spark.log.next_epoch()[0] - 1
        return epoch >= 0 and self.spark.position(epoch) >= rows


@pytest.fixture
def small_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runner asks of Spark is played."""

    def start(job: str, plan: Any, checkpoint: str, interval: float, coordinator: Any, replay: Any) -> Any:
        return coordinator._on_complete.__self__.began(coordinator)

    monkeypatch.setattr(streaming, "start", start)
    monkeypatch.setattr(streaming, "with_verification", lambda plan, *_: plan)
    monkeypatch.setattr(module, "Observer", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(module, "require_same_state", lambda *_: None)
    monkeypatch.setattr(module, "storage_at", lambda *_: None)
    monkeypatch.setattr(module, "callback_server", lambda _: None)
