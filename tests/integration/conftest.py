"""One Spark session for all of these tests, made the way a job makes it, and a hand on the broker's topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import failpoints
from penstock.errors import DevelopmentError
from tests.support.run_job import CrashAt, Kafka, Watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from pyspark.sql import SparkSession

    from penstock import Job
    from tests.support.servers.broker import Broker


@pytest.fixture(scope="session", autouse=True)
def quickly(quick_jvm: None) -> None:
    """Whatever is started here starts quickly."""


_made: dict[SparkSession, dict[str, str]] = {}  # the session of this process, and its settings when it was new


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session that is there, or a new one where another module has stopped it; nobody stops this one. Whatever
    other modules did, it is this thread's session, with the settings it was made with."""
    from pyspark.sql import SparkSession as Session

    from penstock.spark.session import session

    for old, settings in _made.items():
        if old is Session._instantiatedSession and old.sparkContext._jsc is not None:
            Session._activeSession = old  # createDataFrame in another session moves it
            Session._get_j_spark_session_class(old._jvm).setActiveSession(old._jsparkSession)
            now = dict(old.conf.getAll)
            for key in now.keys() | settings.keys():
                if now.get(key) != settings.get(key) and old.conf.isModifiable(key):
                    if key in settings:
                        old.conf.set(key, settings[key])
                    else:
                        old.conf.unset(key)
            return old

    conf = {
        "spark.master": "local[2]",
        "spark.sql.warehouse.dir": str(tmp_path_factory.getbasetemp() / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.minBatchesToRetain": "100",  # tests look back at every epoch
    }
    made = session("tests", conf=conf, jars=["spark-kafka"], local_storage=True)
    _made.clear()
    _made[made] = dict(made.conf.getAll)
    return made


@pytest.fixture
def kafka(broker: Broker) -> Kafka:
    return Kafka(broker.servers)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium; skips where there is none, and none can be brought."""
    pytest.importorskip("playwright", reason="Playwright is missing: it is in the dev group of pyproject.toml")
    from tests.support.browser import browsing, chromium

    try:
        chromium()
    except DevelopmentError as error:
        pytest.skip(f"{error.happened} {error.to_do}")
    with browsing() as started:
        yield started


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoints")


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[CrashAt]:
    """`crash_at("epoch.decided", 3)`: the third passing of that point from now on raises, as a crash would."""
    yield CrashAt(monkeypatch)
    monkeypatch.undo()
    failpoints.reload()


@pytest.fixture
def running() -> Iterator[type[Watched]]:
    """`with running(job) as run:` runs a job beside the test; whatever a failing test leaves is stopped."""
    started: list[Watched] = []

    class Running(Watched):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            started.append(self)

    yield Running
    for one in started:
        one.end()
