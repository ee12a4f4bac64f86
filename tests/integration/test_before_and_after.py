"""The lines of docs/how-to/connect.md, before and after, in each place that they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.supply.jars import jar_set
from penstock.supply.versions import KAFKA_JARS
from tests.support.before_and_after import pair, run
from tests.support.connect_server import Server
from tests.support.jobs import connect_page, pipelines_page
from tests.support.processes import ROOT
from tests.support.run_job import Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

LINES = [str(number) for number in range(100)]
WITH_TESTS = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
}  # programs of their own, over tests.support


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("\n".join(LINES))
    return tmp_path


def verdict(kafka: Kafka, topic: str) -> None:
    """One query wrote each line before, and one after."""
    assert kafka.values(topic) == Counter(LINES + LINES)


def test_in_a_notebook(session: SparkSession, kafka: Kafka, folder: Path) -> None:
    topic = kafka.topic()
    for part, code in zip(("before", "after"), pair("A notebook with a driver", topic), strict=True):
        alerts = session.readStream.format("text").load(str(folder / "in"))
        run(code, alerts=alerts, servers=kafka.servers, path=str(folder / part), penstock=penstock)
        [query] = session.streams.active
        query.processAllAvailable()
        query.stop()
    verdict(kafka, topic)


@pytest.mark.long
def test_over_connect(kafka: Kafka, folder: Path) -> None:
    topic = kafka.topic()
    server = Server(folder, jars=jar_set(KAFKA_JARS))
    try:
        asked = [sys.executable, connect_page.__file__, server.url, kafka.servers, topic, str(folder)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=250, env=WITH_TESTS)
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr
    verdict(kafka, topic)


def run_pipeline(part: str, kafka: Kafka, topic: str, folder: Path) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, pipelines_page.__file__, part, kafka.servers, topic, str(folder)]
    return subprocess.run(asked, capture_output=True, text=True, timeout=140, env=WITH_TESTS)


@pytest.mark.long
def test_in_a_pipeline(kafka: Kafka, folder: Path) -> None:
    topic = kafka.topic()
    for part in ("before", "after"):
        done = run_pipeline(part, kafka, topic, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    verdict(kafka, topic)


@pytest.mark.long
def test_what_is_wrong_is_named_by_the_pipeline(kafka: Kafka, folder: Path) -> None:
    done = run_pipeline("mistake", kafka, kafka.topic(), folder)
    assert done.returncode != 0
    assert "does not know the option 'pth' with the sink 'kafka'" in done.stdout + done.stderr
