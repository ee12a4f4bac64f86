"""The development cluster as its state file and its master tell of it; nothing is started here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import processes
from penstock.dev.servers import spark_service as service
from penstock.dev.servers.host import HOST
from penstock.dev.servers.spark import SparkMaster, SparkWorker, is_executor
from penstock.errors import DevelopmentError
from tests.support.command import run_command


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    service.service_folder().mkdir(parents=True)
    return service.service_folder()


def write(folder: Path, **other: Any) -> None:
    own = [os.getpid(), processes.mark(os.getpid())]
    state = {"version": 1, "port": 7077, "page": 8080, "workers": 2, "cores": 1, "memory": "1g", "processes": [own]}
    (folder / "state.json").write_text(json.dumps({**state, **other}))


def answering(monkeypatch: pytest.MonkeyPatch, *states: str) -> None:
    workers = [{"state": state, "cores": 1} for state in states]
    monkeypatch.setattr(service, "ask_master", lambda port: {"status": "ALIVE", "workers": workers})


def test_nothing_was_started() -> None:
    assert service.status() == service.ClusterStatus(False)


def test_a_cluster_that_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    answering(monkeypatch, "ALIVE", "DEAD", "ALIVE")
    now = service.status()
    assert (now.running, now.master, now.workers, now.cores) == (True, f"spark://{HOST}:7077", 2, 2)
    assert now.note == ""
    assert service.up(workers=2) == now


def test_workers_that_are_gone_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    answering(monkeypatch, "ALIVE", "DEAD")
    assert service.status().note == "1 of 2 workers are gone."


def test_one_that_runs_otherwise_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    answering(monkeypatch, "ALIVE", "ALIVE")
    for asked in ({"workers": 3}, {"workers": 2, "memory": "2g"}, {"workers": 2, "port": 7078}):
        with pytest.raises(DevelopmentError, match="already runs, with 2 workers of 1 cores and 1g each"):
            service.up(**asked)


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}', "[]"])
def test_a_state_that_cannot_be_read_is_none(folder: Path, text: str) -> None:
    (folder / "state.json").write_text(text)
    assert not service.status().running


def test_another_process_of_that_number_is_not_believed_nor_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder, processes=[[os.getpid(), "another boot.1"]])
    answering(monkeypatch, "ALIVE", "ALIVE")
    assert not service.status().running
    assert service.down().note == "It did not run."  # and this process lives
    assert not (folder / "state.json").exists()
    status, out, _ = run_command(monkeypatch, capfd, "dev", "spark", "status", "--json")
    assert (status, json.loads(out)["running"]) == (1, False)


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
