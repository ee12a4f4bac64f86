"""A real job, watched through REST: its checkpoints appear, its plan and lag are told, its history stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Checkpoints, FileSink, Job, RestartStrategy
from penstock.ops.process.registry import Registry
from tests.support.run_job import Kafka, Watched, until
from tests.support.ui_client import request, ui

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_checkpoints_appear_and_stay(
    session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock import KafkaSource

    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    topic = kafka.topic(2)
    kafka.send(topic, [(None, f"row {number % 3}") for number in range(60)], spread=2)
    checkpoints = Checkpoints(storage=storage, interval="100ms")
    job = Job("seen", checkpoints=checkpoints, spark=session, restart=RestartStrategy.none())
    rows = job.read(KafkaSource(topic, servers=kafka.servers), uid="in").selectExpr("cast(value AS string) AS value")
    job.write(rows.dropDuplicates(["value"]), FileSink(str(tmp_path / "out"), format="json"), uid="out")

    with ui() as page:

        def asked(path: str) -> Any:
            status, body = page.ask("GET", path.replace("RUN", run["id"]))
            assert status == 200, body
            return body

        with Watched(job) as watched:
            [run] = until(lambda: page.ask("GET", "/penstock/v1/runs")[1]["runs"], "the run")
            watched.wait_for("checkpoint")
            before = until(lambda: asked("/penstock/v1/runs/RUN/epochs")["epochs"], "the first checkpoint")
            kafka.send(topic, [(None, "new")] * 10, spread=2)
            epochs = until(
                lambda: (
                    (found := asked("/penstock/v1/runs/RUN/epochs")["epochs"])[0]["epoch"] > before[0]["epoch"]
                    and found
                ),
                "the next checkpoint",
            )
            assert epochs[0]["outcome"] == "complete"
            assert set(epochs[0]["phases"]) == {"read_ms", "prepare_ms", "decide_ms", "commit_ms"}
            phases = {
                name: value for name, value in epochs[0]["phases"].items() if name != "read_ms" or value is not None
            }
            assert all(value is not None and value >= 0 for value in phases.values())
            body = asked("/penstock/v1/runs/RUN")
            [query] = body["queries"]
            assert [source["describe"].startswith("Kafka") for source in query["sources"]] == [True]
            assert {"name": "Deduplicate", "stateful": True} in query["operators"]
            partitions = query["sources"][0]["partitions"]
            assert [part["partition"] for part in partitions] == [f"{topic}-0", f"{topic}-1"]
            lags: list[Any] = []

            def known() -> bool:
                [now] = asked("/penstock/v1/runs/RUN")["queries"]
                lags[:] = [part["lag"] for part in now["sources"][0]["partitions"]]
                return None not in lags

            until(known, "the ends of the topic's partitions")  # asked with a short deadline, again and again
            assert all(lag >= 0 for lag in lags)
            assert body["weakest"]["guarantee"] == "exactly-once"
            assert asked("/penstock/v1/runs/RUN/transactions")["unseen"] is not None
            assert asked("/penstock/v1/runs/RUN/state")["operators"][0]["rows"] >= 3
            paths = [f"/penstock/v1/runs/RUN/alignment?query=out&epoch={epoch['epoch']}" for epoch in before]
            measured = [found for path in paths if (found := asked(path)["alignment"]) is not None]
            assert measured, "of short epochs not each, but one every second"
            assert {part["source"] for alignment in measured for part in alignment["partitions"]} == {"in"}
            counts = asked("/v1/jobs/RUN/checkpoints")["counts"]
            assert counts["completed"] >= 2
        entry = Registry().get(run["id"])
        assert entry is not None
        assert entry.address is None
        kept = asked("/penstock/v1/runs/RUN/epochs")["epochs"]
        assert {epoch["epoch"] for epoch in kept} >= {epoch["epoch"] for epoch in epochs}
        assert asked("/penstock/v1/runs/RUN")["run"]["live"] is False
        assert request(page.address, "GET", "/penstock/v1/health")[0] == 200


def test_each_source_has_a_watermark_of_its_own(
    session: SparkSession, kafka: Kafka, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows which source holds the query's watermark, the lower one, back. The third source has none."""
    from penstock import KafkaSource

    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    topics = {uid: kafka.topic(1) for uid in ("slow", "plain", "quick")}
    for uid, topic in topics.items():
        kafka.send(topic, [(None, "1000000000" if uid == "slow" else "1000005000")])
    job = Job("marked", checkpoints=Checkpoints(storage=storage), spark=session, restart=RestartStrategy.none())
    seconds = "timestamp_seconds(cast(cast(value AS string) AS long)) AS ts"
    slow, plain, quick = (
        job.read(KafkaSource(topic, servers=kafka.servers), uid=uid).selectExpr(seconds)
        for uid, topic in topics.items()
    )
    both = slow.withWatermark("ts", "10 seconds").union(quick.withWatermark("ts", "20 seconds")).union(plain)
    job.write(both, FileSink(str(tmp_path / "out"), format="json"), uid="out")

    with ui() as page:

        def query() -> Any:
            return page.ask("GET", f"/penstock/v1/runs/{run['id']}")[1]["queries"][0]

        with Watched(job) as watched:
            [run] = until(lambda: page.ask("GET", "/penstock/v1/runs")[1]["runs"], "the run")
            watched.wait_for("checkpoint")
            kafka.send(topics["plain"], [(None, "1000000000")])
            until(lambda: query()["watermark"], "an epoch after the watermark")
            marks = {source["uid"]: source["watermark"] for source in query()["sources"]}
            assert marks == {"slow": 999_999_990_000, "plain": None, "quick": 1_000_004_980_000}
            assert query()["watermark"] == 999_999_990_000
