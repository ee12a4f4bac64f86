"""An executor dies with outputs of a shuffle, and Spark runs the stage of the writers again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.jobs import shuffled
from tests.support.kafka import read_committed
from tests.support.servers.broker import Broker


@pytest.mark.long
def test_what_the_first_run_of_a_stage_left_is_swept_with_the_epoch(
    broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    """In the second run every task is a first attempt again, so the attempts' numbers do not tell. What the dead
    executor had prepared would keep readers waiting until it timed out."""
    into = topic(2)
    config = {"servers": broker.servers, "topic": into, "job": f"job-{uuid4().hex[:12]}", "folder": str(tmp_path)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = subprocess.run(
        [sys.executable, shuffled.__file__, str(tmp_path / "config.json")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.strip().splitlines()[-1])
    assert told["attempts"] > 1, "the stage ran once: nothing was tried"
    assert told["open"] == shuffled.PARTITIONS + 1
    assert told["writers"] == list(range(shuffled.PARTITIONS))
    assert told["committed"] == ["committed"] * shuffled.PARTITIONS
    assert (told["strays"], told["swept"], told["left"]) == (True, 1, [])
    assert sorted(int(row.value()) for row in read_committed(broker.servers, into)) == list(range(shuffled.ROWS))
