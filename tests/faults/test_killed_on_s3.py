"""A driver whose checkpoints and files are on a real S3 server dies by SIGKILL at every point of an epoch and of a
recovery, one after the other, and so do its workers; its successor goes on each time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.storage.s3 import S3Folder
from penstock.supply.jars import jar_set
from tests.support.failpoint_actions import DRIVER, WORKER
from tests.support.jobs import on_s3
from tests.support.processes import JobProcess
from tests.support.s3_lake import lake
from tests.support.servers.s3 import S3Server
from tests.support.waiting import until

pytestmark = pytest.mark.long  # a start of Spark for every point


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with lake(tmp_path / "s3") as started:
        yield started


def start(server: S3Server, folder: Path) -> JobProcess:
    config = folder / "config.json"
    classes = os.pathsep.join(map(str, jar_set("spark-s3")))
    config.write_text(
        json.dumps({"spark.master": "local[2]", "spark.driver.extraClassPath": classes, **server.hadoop()})
    )
    points = {
        failpoints.VARIABLE: ";".join(f"{point}=crash" for point in (*DRIVER, *WORKER)),
        failpoints.ONCE: str(folder / "once"),
    }
    return JobProcess(Path(on_s3.__file__), [str(config)], folder, environment=points)


def test_a_driver_with_everything_on_s3_is_killed_at_every_point(server: S3Server, tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.mkdir()
    files = S3Folder(on_s3.FILES)
    died: list[str] = []
    while True:
        with start(server, tmp_path) as run:
            until(lambda: run.status is not None, lambda: f"the job to end; died at {died}\n{run.tail()}", 180)  # noqa: B023
            if run.status == 0:
                break
            assert run.wait() == -signal.SIGKILL, run.tail()
        died += (new := [point for point in DRIVER if (once / point).exists() and point not in died])
        assert new, f"it was killed, but at no point; died before at {died}"
        assert len(ids(files)) == len(set(ids(files))), f"doubled after a death at {new}"
    assert sorted(died) == sorted(DRIVER)
    assert all((once / point).exists() for point in WORKER)
    assert sorted(ids(files)) == list(range(on_s3.ROWS)), "every row once"
    assert files.uploads("part-") == [], "nothing is left open"


def ids(files: S3Folder) -> list[int]:
    bodies = [files.read(name) or b"" for name in files.names("part-")]
    return [number for body in bodies for number in pq.read_table(BytesIO(body))["id"].to_pylist()]
