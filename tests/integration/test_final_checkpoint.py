"""The last epoch of bounded inputs: committed, unless it is turned off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from penstock import Checkpoints, DataGenSource, FileSink, Job
from tests.support.run_job import run_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build(session: SparkSession, folder: Path, **checkpoints: object) -> Job:
    settings = Checkpoints(storage=str(folder / "checkpoints"), **checkpoints)  # type: ignore[arg-type]
    job = Job("bounded", checkpoints=settings, spark=session)
    rows = job.read(DataGenSource(rows=1000, max_rows_per_epoch=300), uid="rows")
    job.write(rows, FileSink(str(folder / "out")), uid="out")
    return job


def visible(folder: Path) -> int:
    out = folder / "out"
    return ds.dataset(out, format="parquet").count_rows() if out.exists() and list(out.glob("*.parquet")) else 0


def test_without_a_final_checkpoint_the_end_is_neither_committed_nor_lost(
    session: SparkSession, tmp_path: Path
) -> None:
    events = run_all(build(session, tmp_path, final_checkpoint=False))
    before = visible(tmp_path)
    assert before == 900
    assert not [event for event in events if event["event"] == "restarting"]
    assert not list((tmp_path / "out" / "_penstock").rglob("*.parquet")), "nothing stays prepared"

    run_all(build(session, tmp_path, final_checkpoint=False))
    assert visible(tmp_path) == before, "it is not committed by starting again either"

    run_all(build(session, tmp_path))
    assert visible(tmp_path) == 1000


def test_bounded_inputs_end_with_a_committed_epoch_and_an_empty_log(session: SparkSession, tmp_path: Path) -> None:
    """Also unaligned: the job ends when the in-flight log is delivered."""
    events = run_all(build(session, tmp_path, unaligned=True))
    assert visible(tmp_path) == 1000
    assert len([event for event in events if event["event"] == "drained"]) == 4
    assert not list((tmp_path / "checkpoints").rglob("*.arrow"))
