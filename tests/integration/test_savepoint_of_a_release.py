"""Savepoints that an earlier version made are restored by this one. The stored ones are never made anew: a version that
cannot read them any more needs a migration, not another fixture.

    python tests/integration/test_savepoint_of_a_release.py VERSION     stores those of a new version
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock import Checkpoints, DataGenSource, FileSink, Job, RestartStrategy
from penstock.config.levels import OPTIONS_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA = Path(__file__).parents[1] / "data"
KEYS, PER_EPOCH = 20, 100
STORED = sorted(path.name for path in DATA.glob("savepoint-*") if path.is_dir())


class Files(FileSink):
    def describe(self) -> str:
        return "files"  # where they are on this machine is nobody's business


def build(folder: Path, spark: SparkSession | None = None, sink: type[FileSink] = FileSink) -> Job:
    job = Job(
        "stored",
        checkpoints=Checkpoints(storage=str(folder / "checkpoints")),
        restart=RestartStrategy.none(),
        spark=spark,
    )
    rows = job.read(DataGenSource(columns={"key": f"id % {KEYS}"}, max_rows_per_epoch=PER_EPOCH), uid="rows")
    job.write(rows.groupBy("key").count(), sink(str(folder / "out")), uid="counts", output_mode="update")
    return job


def counts(folder: Path) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for path in (folder / "out").glob("part-*"):
        for row in pq.read_table(path).to_pylist():
            assert row["count"] not in found.setdefault(row["key"], set())
            found[row["key"]].add(row["count"])
    return found


@pytest.mark.parametrize("stored", STORED)
def test_a_stored_savepoint_goes_on(
    stored: str, session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Any
) -> None:
    before = json.loads((DATA / stored / "_metadata").read_text())["body"]["queries"]["counts"]["epoch"]
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.state-recovery.path": str(DATA / stored)}))
    job = build(tmp_path, session)
    monkeypatch.delenv(OPTIONS_VARIABLE)
    with running(job) as run:
        run.committed(3)
    found = counts(tmp_path)
    per_key = PER_EPOCH // KEYS
    assert len(found) == KEYS
    for made in found.values():
        assert min(made) == (before + 2) * per_key, "the first count after the savepoint"
        assert made == set(range(min(made), max(made) + 1, per_key))


@pytest.mark.parametrize("stored", [name for name in STORED if name.endswith("-native")])
def test_spark_reads_the_state_of_a_native_savepoint(stored: str, session: SparkSession, tmp_path: Path) -> None:
    query = json.loads((DATA / stored / "_metadata").read_text())["body"]["queries"]["counts"]
    shutil.copytree(DATA / stored / "queries" / "counts" / "spark", tmp_path / "copy")
    state = session.read.format("statestore").load(str(tmp_path / "copy"))
    assert {row["count"] for row in state.select("value.count").collect()} == {(query["epoch"] + 1) * PER_EPOCH // KEYS}
    assert state.count() == KEYS


def test_every_kind_is_stored() -> None:
    assert {name.rpartition("-")[2] for name in STORED} == {"native", "canonical"}


def store(version: str) -> None:
    """Take and store savepoints of both kinds with this version."""
    import threading

    with tempfile.TemporaryDirectory() as folder:
        job, events = build(Path(folder), sink=Files), list[Any]()
        threading.Thread(target=lambda: job.run(on_event=events.append), daemon=True).start()
        while sum(event["event"] == "completed" for event in events) < 4:
            time.sleep(0.1)
        for kind in ("native", "canonical"):
            made = Path(job.savepoint(f"{folder}/savepoints", kind=kind))
            ignored = shutil.ignore_patterns(".*.crc")
            shutil.copytree(made, DATA / f"savepoint-{version}-{kind}", ignore=ignored)
        job.stop()
        while not any(event["event"] == "stopped" for event in events):
            time.sleep(0.1)


if __name__ == "__main__":
    store(sys.argv[1])
