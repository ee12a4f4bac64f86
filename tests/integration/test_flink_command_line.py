"""Flink's own command line drives a real job: it lists it, saves it, waits for its checkpoint, and stops it.

Its client is large, so it is fetched into the user's cache when this test runs for the first time, and never by
anything else but the benchmark beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flink_home import bring_flink
from penstock.errors import DevelopmentError
from penstock.ops.process.registry import Entry, Registry, State
from penstock.savepoints import savepoint
from penstock.storage.local import LocalTree
from penstock.supply.java import find_java
from tests.support.payments_script import SCRIPT
from tests.support.servers.processes import end_process

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

Flink = Callable[..., str]


@pytest.fixture(scope="module")
def flink_home() -> Path:
    try:
        return bring_flink()
    except DevelopmentError as error:
        pytest.skip(error.happened)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    """A real job in the background, as the registry knows it."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    (tmp_path / "job.py").write_text(SCRIPT)
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "run", "-d", "job.py"]
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert started.returncode == 0, started.stderr
    [entry] = Registry().entries()
    yield entry
    for left in Registry().entries():
        if left.supervised and left.supervisor is not None:
            end_process(left.supervisor, 30)


@pytest.fixture
def flink(flink_home: Path, job: Entry, tmp_path: Path) -> Flink:
    """Flink's command, with the job's token; what it says."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "FLINK_HOME": str(flink_home),
        "FLINK_CONF_DIR": str(flink_home / "conf"),
        "FLINK_LOG_DIR": str(tmp_path),
    }

    def run(verb: str, *arguments: str, status: int = 0, token: str | None = job.token) -> str:
        headers = {"FLINK_REST_CLIENT_HEADERS": f"Authorization:Bearer {token}"} if token else {}
        command = [str(flink_home / "bin" / "flink"), verb, "-m", str(job.address), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env={**environment, **headers}, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == status, f"{verb}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


def test_flink_drives_a_job(flink: Flink, job: Entry, tmp_path: Path) -> None:
    listed = flink("list")
    assert re.search(rf"{job.id} : payments \(RUNNING\)", listed), listed
    assert "token is needed" in flink("list", status=1, token=None)

    for kind in ("native", "canonical"):
        said = flink("savepoint", "-type", kind, job.id, str(tmp_path / kind))
        path = saved_at(said)
        assert path.parent == tmp_path / kind
        assert savepoint.read(LocalTree(path)).kind == kind
        savepoint.verify(LocalTree(path), savepoint.read(LocalTree(path)))
    flink("savepoint", "-d", str(path))
    assert not path.exists()
    assert re.search(r"Checkpoint \d+ for job", flink("checkpoint", job.id))

    path = saved_at(flink("stop", "-p", str(tmp_path / "last"), job.id))
    savepoint.verify(LocalTree(path), savepoint.read(LocalTree(path)))
    ended = Registry().get(job.id)
    while ended is not None and (not ended.state.ended or ended.supervised):
        ended = Registry().get(job.id)
    assert ended is not None
    assert ended.state is State.FINISHED
    ids = sorted(ds.dataset(tmp_path / "out", format="parquet").to_table().column("id").to_pylist())
    assert ids == list(range(len(ids)))
    assert ids


def saved_at(said: str) -> Path:
    match = re.search(r"Path: (?:file:)?(\S+)", said)
    assert match is not None, said
    return Path(match[1])
