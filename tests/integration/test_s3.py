"""Checkpoints, ledger, savepoints and files on a real S3 server, through `s3a` and through the file sink."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.s3_lake import lake
from tests.support.s3_proxy import S3Proxy
from tests.support.servers.s3 import S3Server

pytestmark = pytest.mark.long  # the contract of the file sink, in every run, is on the same server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with lake(tmp_path / "s3") as started:
        yield started


def start(server: S3Server, part: str, **settings: str) -> subprocess.Popen[str]:
    # In a process of its own: the connector must be on the class path before the JVM starts.
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_story", part],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_TEST_HADOOP": json.dumps({**server.hadoop(), **settings})},
    )


def told_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, errors = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-4000:]
    told: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return told


def test_a_job_lives_and_recovers_on_s3(server: S3Server) -> None:
    told = told_by(start(server, "story"))
    assert told["second_create"] == "AlreadyExists"
    assert told["winners_of_a_race"] == 1
    assert (told["listed"], told["left"]) == (["one.json", "race.json"], ["race.json"])
    assert told["first_run"] == "InjectedFault"
    assert told["recovered"] == "finished", "the decided epoch is finished from the ledger on S3"
    assert told["ids"] == list(range(told["rows"])), "every row once, in objects"
    assert told["uploads"] == 0, "nothing is left open"
    assert told["secrets_found"] == []


def test_of_two_drivers_that_race_each_gets_generations_of_its_own(server: S3Server) -> None:
    racers = [start(server, "racer") for _ in range(2)]
    one, other = [told_by(racer)["generations"] for racer in racers]
    assert sorted(one + other) == list(range(1, len(one + other) + 1)), "no number twice, and none left out"
    assert min(one) < max(other), "they raced"
    assert min(other) < max(one), "they raced"


def test_savepoints_on_s3(server: S3Server) -> None:
    told = told_by(start(server, "large"))
    assert told["large_file_is_the_same"]
    assert told["savepoint_on_hdfs"] == ["counts"]
    assert told["counts"] == [1_000 * (number + 1) for number in range(len(told["counts"]))], "one count, without a gap"
    assert told["forked"] > 3_000
    assert told["left"] == {}


def test_a_store_without_conditional_writes_is_refused(server: S3Server) -> None:
    with S3Proxy(server.url) as proxy:
        proxy.conditions_ignored = True
        told = told_by(start(server, "unconditional", **{"spark.hadoop.fs.s3a.endpoint": proxy.url}))
    assert "let the same file be created twice" in told["refused"]
