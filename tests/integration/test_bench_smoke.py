"""The benchmarks run, in small: what they print is theirs to judge, that they work is ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *options], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.long
def test_the_kafka_benchmark_runs_in_small(tmp_path: Path) -> None:
    results = tmp_path / "kafka.json"
    small = "--rows 8000 --epoch 2000 --repeat 1 --tuned-only --writers 8 --only throughput writers"
    run("bench_kafka.py", *small.split(), "--results", str(results))
    told = json.loads(results.read_text())
    assert set(told["throughput"]) == {"spark, tuned", "penstock, tuned"}
    assert told["writers"]["writers"] == 8
    # Four or five: a limit of rows is split over the partitions, and the last rows may need an epoch more.
    assert told["decided_to_visible_ms"]["epochs"] >= 4, "every epoch is measured"


@pytest.mark.long
def test_the_memory_benchmark_runs_in_small(tmp_path: Path) -> None:
    """The same variant's script and the same watching of a job as above."""
    results = tmp_path / "kafka.json"
    run("bench_kafka.py", "--only", "memory", "--epochs", "10", "--results", str(results))
    assert json.loads(results.read_text())["memory"]["epochs"] == 10


@pytest.mark.long
def test_the_backpressure_benchmark_runs_in_small(tmp_path: Path) -> None:
    """Each phase ends when enough has happened in it, so a slow machine takes longer and tells the same."""
    results = tmp_path / "backpressure.json"
    results.write_text(json.dumps({"tee": "of an earlier run"}))
    small = "--variants unaligned --rate 2000 --interval 200ms --warm-up 0 --calm 1 --pressure 1 --tail 0"
    run("bench_backpressure.py", "--only", "pressure", *small.split(), "--results", str(results))
    told = json.loads(results.read_text())
    assert told["tee"] == "of an earlier run"
    unaligned = told["pressure"]["unaligned"]
    assert unaligned["rows"] > 0
    assert unaligned["verdict"]["ok"]
    assert unaligned["without_pressure"]["checkpoints"] > 0
    assert unaligned["under_pressure"]["checkpoints"] > 0
    assert unaligned["logged_under_pressure"] > 0
    assert unaligned["inflight_peak_bytes"] > 0


@pytest.mark.long
def test_the_savepoint_benchmark_runs_in_small(tmp_path: Path) -> None:
    results = tmp_path / "savepoint.json"
    small = "--keys 1000 --per-epoch 1000 --savepoints 1 --epochs 1 --backends hashmap"
    run("bench_savepoint.py", *small.split(), "--results", str(results))
    told = json.loads(results.read_text())["hashmap"]
    assert told["savepoints"] == 1
    assert told["bytes"] > 0
    assert told["epoch_ms"]["resumed"] > 0


@pytest.mark.long
def test_the_benchmark_beside_flink_runs_in_small_without_flink(tmp_path: Path) -> None:
    """Load, reader, job and verdict; the other systems and measures are the long test's."""
    results = tmp_path / "flink.json"
    results.write_text(json.dumps({"start": "of an earlier run"}))
    small = "latency --systems penstock --rounds 1 --repeats 0 --interval 200 --warm-up 0 --seconds 2"
    run("bench_flink.py", *small.split(), "--results", str(results))
    told = json.loads(results.read_text())
    assert told["start"] == "of an earlier run"
    [one] = told["latency"]["200"]["penstock"]["rounds"]
    assert 0 < one["p50_ms"] <= one["p99_ms"]
    assert one["rows"] > 0
    assert one["lost"] == one["doubled"] == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_benchmark_beside_flink_runs_in_small(tmp_path: Path) -> None:
    """With Flink, which is fetched if this machine never had it."""
    results = tmp_path / "flink.json"
    shared = ["--rounds", "1", "--repeats", "0", "--results", str(results)]
    run("bench_flink.py", "throughput", "--work", "bytes", "--rows", "4000000", "--epoch", "500000", *shared)
    run("bench_flink.py", "silence", "--warm-up", "3", "--after", "40", "--systems", "flink", "penstock", *shared)
    told = json.loads(results.read_text())
    assert set(told["throughput"]["bytes"]) == {"flink", "penstock", "spark"}
    for one in told["throughput"]["bytes"].values():
        assert one["rounds"][0]["rows_per_second"] > 0
        assert one["rounds"][0]["lost"] == one["rounds"][0]["doubled"] == 0
    for system in ("flink", "penstock"):
        [one] = told["silence"]["1000"][system]["rounds"]
        assert one["silence_seconds"] > one["before_seconds"]
        assert one["lost"] == one["doubled"] == 0


@pytest.mark.long
def test_the_sinks_benchmark_runs_in_small(tmp_path: Path) -> None:
    """One target is enough: the others differ only in what they connect to. What was written is counted."""
    results = tmp_path / "sinks.json"
    results.write_text(json.dumps({"delta": "of an earlier run"}))
    small = "--rows 2000 --warm-up 0 --repeat 1 --only postgres"
    run("bench_sinks.py", *small.split(), "--results", str(results))
    told = json.loads(results.read_text())
    assert told["delta"] == "of an earlier run"
    assert {side: len(rounds) for side, rounds in told["postgres"]["rounds"].items()} == {"penstock": 1, "spark": 1}
    assert told["postgres"]["ratio"] > 0
