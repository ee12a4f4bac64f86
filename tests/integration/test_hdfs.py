"""Checkpoints, ledger and output on a real HDFS: a name node and a data node of Hadoop's own mini cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # a cluster of its own; every run has Hadoop's storage in `test_hadoop_storage.py`

ROOT = Path(__file__).parents[2]


def test_a_job_lives_and_recovers_on_hdfs(tmp_path: Path) -> None:
    # In a process of its own: the cluster must be on the class path before the JVM starts.
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hdfs_story", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["second_create"] == "AlreadyExists"
    assert told["winners_of_a_race"] == 1
    assert told["synced"] == "1", "a sync of a closed file leaves it as it is"
    assert told["first_run"] == "InjectedFault"
    assert told["recovered"] == "finished", "the decided epoch is finished from the ledger on HDFS"
    assert told["ids"] == list(range(told["rows"])), "every row once"
    assert told["savepoint_on_hdfs"] == ["counts"]
    assert told["restored"]["counts"] >= 2
    assert told["counts"] == [1_000 * (number + 1) for number in range(len(told["counts"]))], "one count, without a gap"
    assert told["forked"] > 3_000, "the fork goes on from the savepoint on HDFS"
    assert told["left"] == {}
