"""A real job, from the command line only: in the background, looked at, saved, stopped, started from its savepoint,
cancelled. What came out is checked over the whole story."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.ops.process.registry import Registry
from penstock.ops.server.run_view import PHASES
from tests.support.payments_script import SCRIPT
from tests.support.servers.processes import end_process
from tests.support.waiting import until

Penstock = Callable[..., Any]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    """The command as the shell starts it, and what it answered as JSON. Whatever is left running ends with the test."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(SCRIPT.replace(', savepoint_dir="savepoints"', ""))

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
        logs = "".join(file.read_text()[-3000:] for file in (tmp_path / "home" / "logs").glob("*.log"))
        assert result.returncode == 0, f"{arguments}: {result.stderr}\n{logs}"
        return json.loads(result.stdout) if "--json" in arguments else result.stdout

    yield run
    for entry in Registry().entries():
        if entry.supervised and entry.supervisor is not None:
            end_process(entry.supervisor, 30)


def ids(folder: Path) -> list[int]:
    try:
        return sorted(ds.dataset(folder, format="parquet").to_table().column("id").to_pylist())
    except (FileNotFoundError, KeyError):
        return []


def metrics_of(run: str) -> dict[tuple[str, str | None], float]:
    """What the job tells Prometheus, by name and phase."""
    entry = Registry().get(run)
    assert entry is not None
    request = urllib.request.Request(
        f"http://{entry.address}/metrics", headers={"Authorization": f"Bearer {entry.token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, sample.labels.get("phase")): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["job_name"] == "payments" and sample.labels.get("query", "out") == "out"
    }


def check_metrics(run: str, epoch: int) -> None:
    """Complete epochs are counted and measured, each in its phases."""
    found = metrics_of(run)
    assert found["penstock_epochs_completed_total", None] >= epoch
    assert found["penstock_last_completed_epoch", None] >= epoch
    assert found["penstock_rows_total", None] > 0
    assert found["penstock_epochs_failed_total", None] == found["penstock_transactions_in_doubt", None] == 0
    assert found["penstock_recoveries_total", None] == found["penstock_savepoints_total", None] == 1
    measured = {phase: found["penstock_epoch_phase_seconds_count", phase] for phase in PHASES}
    assert (
        0
        < measured["commit"]
        == measured["decide"]
        == measured["prepare"]
        == found["penstock_epoch_seconds_count", None]
    )
    assert measured["read"] <= measured["prepare"]


def test_a_job_s_whole_life(penstock: Penstock, tmp_path: Path) -> None:
    out = tmp_path / "out"
    started = penstock("run", "-d", "--json", "job.py")
    assert (started["name"], started["state"]) == ("payments", "RUNNING")
    [listed] = penstock("list", "-r", "--json")
    assert (listed["id"], listed["storage"]) == (started["id"], str(tmp_path / "checkpoints"))
    first, second = (penstock("checkpoint", "payments", "--json")["checkpoint"] for _ in range(2))
    assert first < second
    saved = penstock("savepoint", "payments", "--json")["savepoint"]
    assert (tmp_path / "checkpoints" / "_savepoints") in Path(saved.removeprefix("file:")).absolute().parents
    check_metrics(started["id"], second)
    stopped = penstock("stop", started["id"][:8], "-p", "elsewhere", "--json")
    assert stopped["state"] == "FINISHED"
    before = ids(out)
    assert before == list(range(len(before)))
    assert before
    assert penstock("list", "--json") == []
    assert "INFO penstock: query out: epoch " in penstock("logs", started["id"])

    again = penstock("run", "-d", "-s", stopped["savepoint"], "--log-format", "json", "--json", "job.py")
    assert again["id"] != started["id"]
    until(lambda: len(ids(out)) > len(before), "new rows")
    assert penstock("cancel", "payments", "--json")["state"] == "CANCELED"
    after = ids(out)
    assert after == list(range(len(after)))
    assert [one["state"] for one in penstock("list", "-a", "--json")] == ["CANCELED", "FINISHED"]
    lines = [json.loads(line) for line in penstock("logs", "payments").splitlines() if line.startswith("{")]
    assert any("the driver runs as process" in line["message"] for line in lines)
    penstock("savepoint", "--dispose", saved, "--json")
    assert not Path(saved.removeprefix("file:")).exists()
