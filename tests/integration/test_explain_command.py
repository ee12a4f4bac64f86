"""`penstock explain` and `penstock check` on a real job, which they load and do not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import GuaranteeError, TopicMissing
from tests.support.run_job import Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = """
from penstock import Checkpoints, Job, KafkaSink, KafkaSource

job = Job("explained", checkpoints=Checkpoints(mode={mode!r}, storage={storage!r}))
rows = job.read(KafkaSource({source!r}, servers={servers!r}, options={options!r}), uid="in")
job.write(rows.select("key", "value"), KafkaSink({target!r}, servers={servers!r}), uid="out")

if __name__ == "__main__":
    raise SystemExit("it is run")
"""


@pytest.fixture
def script(session: SparkSession, kafka: Kafka, tmp_path: Path) -> Path:
    """Written by `write`; the topics are there."""
    return tmp_path / "job.py"


def write(script: Path, kafka: Kafka, *, target: str, mode: str = "exactly_once", **options: str) -> str:
    storage = str(script.parent / "checkpoints")
    source = kafka.topic()
    filled = {"mode": mode, "storage": storage, "source": source, "target": target, "servers": kafka.servers}
    script.write_text(JOB.format(**filled, options=options))
    return storage


@pytest.mark.parametrize(("mode", "gives"), [("exactly_once", "exactly-once"), ("at_least_once", "at-least-once")])
def test_the_weakest_link_is_named(script: Path, kafka: Kafka, mode: str, gives: str) -> None:
    storage = write(script, kafka, target=kafka.topic(), mode=mode)
    told = CliRunner().invoke(app, ["explain", str(script), "--json"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    links = json.loads(told.stdout)
    assert [(one["link"], one["name"]) for one in links] == [("source", "in"), ("engine", "spark"), ("sink", "out")]
    [weakest] = [one for one in links if one["weakest"]]
    assert weakest["guarantee"] == gives
    assert (weakest["link"] == "engine") is (mode == "at_least_once")
    assert not Path(storage).exists(), "nothing was run"


def test_a_check_connects_and_writes_nothing(script: Path, kafka: Kafka) -> None:
    storage = write(script, kafka, target=kafka.topic())
    assert CliRunner().invoke(app, ["check", str(script)], catch_exceptions=False).exit_code == 0
    assert not Path(storage).exists()


def test_a_check_names_what_cannot_work(script: Path, kafka: Kafka) -> None:
    write(script, kafka, target="not-there")
    assert isinstance(CliRunner().invoke(app, ["check", str(script)]).exception, TopicMissing)
    write(script, kafka, target=kafka.topic(), failOnDataLoss="false")
    assert isinstance(CliRunner().invoke(app, ["check", str(script)]).exception, GuaranteeError)


def test_what_a_standby_costs_is_said(script: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    write(script, kafka, target=kafka.topic())
    monkeypatch.setenv("PENSTOCK_OPTIONS", json.dumps({"high-availability.standby": "true"}))
    told = CliRunner().invoke(app, ["explain", str(script)], catch_exceptions=False)
    assert "twice the memory of a driver" in " ".join(told.output.split())


OWN_SOURCE = """
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from penstock import Checkpoints, FileSink, Job


class Own(DataSource):
    def schema(self):
        return "id bigint"

    def simpleStreamReader(self, schema):
        return Reader()


class Reader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {{"at": 0}}

    def read(self, start):
        return iter([]), start


job = Job("own", checkpoints=Checkpoints(storage={folder!r} + "/checkpoints"))
job.spark.dataSource.register(Own)
rows = job.read(job.spark.readStream.format("Own"), uid="own", replayable=True)
job.write(rows, FileSink({folder!r} + "/out"), uid="out")
"""


def test_a_source_that_the_job_s_file_defines(session: SparkSession, tmp_path: Path) -> None:
    """Workers plan it, and cannot import the file."""
    script = tmp_path / "job.py"
    script.write_text(OWN_SOURCE.format(folder=str(tmp_path)))
    told = CliRunner().invoke(app, ["explain", str(script), "--json"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    assert [one["name"] for one in json.loads(told.stdout)] == ["own", "spark", "out"]
