"""Settings from a file and `-D` in a session that runs already."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Checkpoints, DataGenSource, FileSink, Job
from penstock.config.levels import FILE_VARIABLE, OPTIONS_VARIABLE
from penstock.spark import settings as settle
from tests.support.run_job import Watched, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

ZONE, ANSI, MEMORY = "spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.executor.memory"


def test_an_interval_is_spark_s_trigger(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: type[Watched]
) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.checkpointing.interval": "25000"}))
    job = Job("often", checkpoints=Checkpoints(storage=str(tmp_path / "checkpoints")), spark=session)
    job.write(job.read(DataGenSource(rate=10), uid="in"), FileSink(str(tmp_path / "out")), uid="out")
    with running(job):
        until(lambda: session.streams.active, "the query to start")
        [query] = session.streams.active
        assert query._jsq.streamingQuery().trigger().intervalMs() == 25000
        job.stop()


def test_spark_s_own_settings(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`-D` wins over the session, the file gives way to it, and what can no longer be changed is said."""
    (tmp_path / "file.yaml").write_text(f"{ZONE}: Asia/Tokyo\n{ANSI}: 'false'\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file.yaml"))
    monkeypatch.setattr(settle, "_warned", set())
    zone = session.conf.get(ZONE)
    try:
        with caplog.at_level(logging.WARNING):
            Job("job", spark=session)
            assert (session.conf.get(ZONE), session.conf.get(ANSI)) == (zone, "false")
            monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({ZONE: "Europe/Oslo", MEMORY: "7g"}))
            Job("job", spark=session)
        assert session.conf.get(ZONE) == "Europe/Oslo"
        way, late = (record.getMessage() for record in caplog.records if record.name.startswith("penstock"))
        assert way.endswith(f"gives way to {ZONE}={zone} from the Spark session.")
        assert late == f"-D {MEMORY}=7g comes too late: the Spark session runs already."
    finally:
        session.conf.set(ZONE, str(zone))
        session.conf.unset(ANSI)
