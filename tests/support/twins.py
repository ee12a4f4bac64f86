"""One plan run in a folder of its own, killed after a decision, and compared with a run that nothing happened to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.failpoints import InjectedFault
from tests.support.run_job import Checkpoint, CrashAt, Event, Numbers, failing, run_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock import TwoPhaseSink

START = 1_767_225_600  # 2026-01-01, in seconds

#: A second of event time a row, out of order by up to 15 seconds.
EVENTS = {
    "id": "id",
    "user": "concat('u', pmod(id, 5))",
    "ts": f"timestamp_seconds({START} + id - pmod(xxhash64(id), 15))",
}
ROWS = 500  # in epochs of a hundred
CRASH = 2  # the epoch that is decided and not finished


def events(job: Job, rows: int = ROWS, uid: str = "events", **columns: str) -> DataFrame:
    return job.read(Numbers(rows, {**EVENTS, **columns}), uid=uid)


def stateless(job: Job, delay: str | None = None) -> DataFrame:
    rows = events(job) if delay is None else events(job).withWatermark("ts", delay)
    return rows.selectExpr("cast(id AS string) AS value")


def windows(job: Job) -> DataFrame:
    from pyspark.sql import functions as f

    counted = events(job).withWatermark("ts", "20 seconds").groupBy(f.window("ts", "30 seconds"), "user").count()
    return counted.selectExpr("concat_ws(' ', unix_timestamp(window.start), user, count) AS value")


def join(job: Job) -> DataFrame:
    """Two streams whose event times run apart, so that it matters which of the watermarks counts."""
    from pyspark.sql import functions as f

    left = events(job, uid="left").withWatermark("ts", "10 seconds").alias("l")
    slower = f"timestamp_seconds({START} + div(id, 2))"
    right = events(job, uid="right", ts=slower).withWatermark("ts", "1 minute").alias("r")
    near = "l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL 10 MINUTES AND l.ts + INTERVAL 10 MINUTES"
    return left.join(right, f.expr(near), "inner").selectExpr("cast(l.id AS string) AS value")


def users_by_chance(job: Job) -> DataFrame:
    """Not deterministic: whoever computes it again gets other rows."""
    bucketed = events(job).selectExpr("cast(floor(rand() * 20) AS int) AS bucket").groupBy("bucket").count()
    return bucketed.selectExpr("cast(bucket AS string) AS key", "cast(count AS string) AS value")


class Twin:
    """One plan, run in a folder of its own, into a sink of its own."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        build: Callable[[Job], DataFrame],
        *,
        sink: TwoPhaseSink | None = None,
        mode: str = "append",
        storage: str | None = None,
    ) -> None:
        self._session, self._folder, self._build, self._mode = session, folder, build, mode
        self._sink = sink or FileSink(str(folder / "out"), format="json")
        self._storage = storage or str(folder / "checkpoints")
        self.checkpoint = Checkpoint(self._storage.removeprefix("file:"), "twin", "out")

    def job(self, restart: RestartStrategy | None = None) -> Job:
        job = Job(
            "twin",
            checkpoints=Checkpoints(storage=self._storage),
            spark=self._session,
            restart=restart or RestartStrategy.none(),
        )
        job.write(self._build(job), self._sink, uid="out", output_mode=self._mode)
        return job

    def run(self) -> list[Event]:
        return run_all(self.job())

    def files(self) -> Counter[str]:
        out = self._folder / "out"
        lines = (line for part in out.glob("part-*") for line in part.read_text().splitlines())
        return Counter(json.loads(line)["value"] for line in lines)


def only(events: list[Event], name: str) -> Event:
    [found] = [event for event in events if event["event"] == name]
    return found


def crash_and_finish(twin: Twin, crash_at: CrashAt, point: str = "epoch.decided", epoch: int = CRASH) -> list[Event]:
    """Die in `epoch`, start again, run to the end; the events of the second run."""
    crash_at(point, epoch + 1)
    failing(twin.job(), InjectedFault)
    crash_at.no_more()
    assert max(twin.checkpoint.manifests) == epoch
    assert twin.checkpoint.epochs == list(range(epoch)), "Spark logged an epoch that was not finished"
    return twin.run()


def assert_went_on(events: list[Event], epoch: int = CRASH) -> None:
    """The decided epoch was finished from outside, and never opened again."""
    recovered = only(events, "recovered")
    assert (recovered["action"], recovered["epoch"], recovered["generation"]) == ("finished", epoch + 1, 2)
    opened = [event["epoch"] for event in events if event["event"] == "opened"]
    assert opened[0] == epoch + 1
    assert only([e for e in events if e.get("recovery")], "committed")["epoch"] == epoch


def assert_alike(one: Twin, other: Twin, least: int = 5) -> None:
    """Every epoch of both ended at the same positions, with the same rows at every writer and the same watermark."""
    a, b = one.checkpoint, other.checkpoint
    both = [epoch for epoch in a.epochs if epoch in b.epochs]
    assert len(both) >= least
    for epoch in both:
        assert a.barrier(epoch) == b.barrier(epoch), epoch
        assert a.outputs[epoch] == b.outputs[epoch], epoch
        assert a.watermark(epoch) == b.watermark(epoch), epoch


def assert_tracked(twin: Twin) -> None:
    """In every epoch the watermark we decided on is the one Spark wrote."""
    decided, written = twin.checkpoint.decided_watermarks, twin.checkpoint.watermarks
    assert {epoch: decided[epoch] for epoch in written} == written
