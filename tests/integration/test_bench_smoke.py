"""The benchmarks run, in small: what they print is theirs to judge, that they work is ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "bench_kafka.py"


def test_the_kafka_benchmark_runs_in_small(tmp_path: Path) -> None:
    results = tmp_path / "kafka.json"
    small = ["--rows", "40000", "--epoch", "8000", "--repeat", "1", "--epochs", "20", "--writers", "8"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *small, "--results", str(results)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads(results.read_text())
    assert set(told["throughput"]) == {"spark, defaults", "penstock, defaults", "spark, tuned", "penstock, tuned"}
    assert told["memory"]["epochs"] == 20
    assert told["writers"]["writers"] == 8
    # Five each, or six: a limit of rows is split over the partitions, and the last rows may need an epoch more.
    assert told["decided_to_visible_ms"]["epochs"] >= 10, "every epoch of both Penstock variants is measured"
