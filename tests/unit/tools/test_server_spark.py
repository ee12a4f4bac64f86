"""The Spark cluster for tests; nothing is started here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.dev.kafka import HOST
from tests.support.servers.spark import SparkMaster, SparkWorker, is_executor


def test_all_is_bound_to_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "0.0.0.0")
    master = SparkMaster(tmp_path / "master")
    worker = SparkWorker(tmp_path / "worker", master, 1, "1g")
    for server in (master, worker):
        command = server._command()
        assert command[command.index("--host") + 1] == HOST
        assert server._environment()["SPARK_LOCAL_IP"] == HOST
    assert worker._command()[-1] == master.url == f"spark://{HOST}:{master.port}"
    assert not worker.executors()
    assert not is_executor(os.getpid())
