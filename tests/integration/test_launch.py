"""One job, launched in every way there is; what the user has set is never overridden; the examples work."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

import penstock
from penstock.spark.session import session as make_session
from tests.support.quick_jvm import VARIABLE as QUICK_JVM
from tests.support.run_job import PATIENCE, Kafka, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.broker import Broker

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = Path(penstock.__file__).parents[1]

SHUFFLE = "spark.sql.shuffle.partitions"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
REUSE = "spark.python.worker.reuse"
PROGRESS = "spark.ui.showConsoleProgress"
MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing"
OURS = {
    "spark.master": "local[*]",
    SHUFFLE: str(len(os.sched_getaffinity(0))),
    MANAGER: f"{MANAGERS}.FileSystemBasedCheckpointFileManager",
    ARROW_ROWS: "20000",
    ARROW_BYTES: str(64 << 20),
    REUSE: "true",
    PROGRESS: "false",
}

#: Under spark-submit the Python program is a child of the JVM that was launched; a clean end is asked of the program.
PID = "import os; open(os.environ['REPORT'] + '.pid', 'w').write(str(os.getpid()))"

JOB = 'Job("payments"'
SECRET = "fs.s3a.secret.key"

#: What Spark and Java write at every start, on every machine.
NOISE = (
    "incubator", "log4j profile", "NativeCodeLoader", "Setting default log level", "To adjust logging", "loopback",
    "SPARK_LOCAL_IP", ":: loading",
)  # fmt: skip

#: The example, and then what Spark was told in the end.
REPORTING = f"""
{PID}
import contextlib, json, os, runpy, sys
sys.argv = [os.path.join(os.path.dirname(__file__), "example.py")]
try:
    names = runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    from pyspark.sql import SparkSession
    spark = SparkSession._instantiatedSession
    told = {{key: spark.conf.get(key, None) for key in {[*OURS, "spark.jars"]!r}}}
    java = f"/proc/{{spark.sparkContext._gateway.proc.pid}}" if spark.sparkContext._gateway.proc else "/nowhere"
    with contextlib.suppress(FileNotFoundError):
        told["java"] = open(f"{{java}}/cmdline").read()
        told["secret"] = spark.sparkContext._jsc.hadoopConfiguration().get({SECRET!r})
    told["python"] = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).first()
    with open(os.environ["REPORT"], "w") as file:
        json.dump(told, file)
"""


class Launch:
    """One program in a process of its own: sent payments, ended with SIGTERM once its alerts are there."""

    def __init__(self, kafka: Kafka, folder: Path, script: str) -> None:
        self._kafka, self._folder = kafka, folder
        self._topics = kafka.topic(), kafka.topic()
        self.script = folder / "job.py"
        folder.mkdir()
        self.script.write_text(script.replace(JOB, named := f'Job("payments-{folder.name}"'))
        # They run side by side on one broker: with one name they would take each other for an older run.
        (folder / "example.py").write_text((EXAMPLES / "kafka_to_kafka.py").read_text().replace(JOB, named))

    def start(self, command: list[str], more: Mapping[str, str] | None = None) -> None:
        payments, alerts = self._topics
        rows = [(f"a{n}", json.dumps({"id": n, "amount": 500 + n * 10})) for n in range(100)]
        self._kafka.send(payments, rows)
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYSPARK", "SPARK", "JAVA_")) or key == QUICK_JVM
        }
        environment = {
            **clean,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(PACKAGES),
            "KAFKA": self._kafka.servers,
            "PAYMENTS": payments,
            "ALERTS": alerts,
            "CHECKPOINTS": str(self._folder / "checkpoints"),
            "REPORT": str(self._folder / "report.json"),
            **(more or {}),
        }
        with (self._folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, cwd=self._folder, stdout=output, stderr=output)

    @property
    def output(self) -> str:
        return (self._folder / "output.txt").read_text()[-4000:]

    @property
    def noise(self) -> list[str]:
        lines = (self._folder / "output.txt").read_text().splitlines()
        return [line for line in lines if any(one in line for one in NOISE)]

    def finish(self) -> dict[str, Any]:
        """The alerts must be right and the end clean; what Spark was told."""
        expected = Counter(range(51, 100))
        try:
            until(lambda: self._alerts().total() >= expected.total() or self._process.poll() is not None, "the alerts")
            assert self._process.poll() is None, self.output
            os.kill(int((self._folder / "report.json.pid").read_text()), signal.SIGTERM)
            assert self._process.wait(PATIENCE) == 0, self.output
        finally:
            self.end()
        assert self._alerts() == expected
        assert "the weakest link is" in self.output
        report = self._folder / "report.json"
        told: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
        return told

    def _alerts(self) -> Counter[int]:
        return Counter(json.loads(value)["id"] for value in self._kafka.values(self._topics[1]).elements())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


THEIRS = {
    SHUFFLE: "3",
    MANAGER: f"{MANAGERS}.FileContextBasedCheckpointFileManager",
    ARROW_ROWS: "1234",
    ARROW_BYTES: "1000000",
    REUSE: "false",
    PROGRESS: "true",
}


@pytest.fixture(scope="module")
def launched(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Launch]]:
    """The same job, all ways at once, because most of their time is Java starting."""
    import pyspark

    kafka, folder = Kafka(broker.servers), tmp_path_factory.mktemp("launch")
    defined, _, _ = (EXAMPLES / "kafka_to_kafka.py").read_text().partition('if __name__ == "__main__":')
    found = {
        "python": Launch(kafka, folder / "python", REPORTING),
        "submit": Launch(kafka, folder / "submit", REPORTING),
        "run": Launch(kafka, folder / "run", f"{PID}\n{defined}\nprint(job.explain())\n"),
    }
    (folder / "spark-defaults.conf").write_text(f"{ARROW_ROWS} 7777\n")
    secret = json.dumps({f"spark.hadoop.{SECRET}": " hunter=2: \\ü"})
    own = {"SPARK_CONF_DIR": str(folder), "PENSTOCK_OPTIONS": secret}
    found["python"].start([sys.executable, str(found["python"].script)], own)
    confs = [part for key, value in THEIRS.items() for part in ("--conf", f"{key}={value}")]
    python = ["--conf", f"spark.pyspark.python={sys.executable}"]
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    found["submit"].start([submit, "--master", "local[2]", *confs, *python, str(found["submit"].script)])
    command = "from penstock.cli.main import main; main()"
    found["run"].start([sys.executable, "-c", command, "run", str(found["run"].script)])
    yield found
    for one in found.values():
        one.end()


def test_python(launched: dict[str, Launch]) -> None:
    """Nothing is set, so everything is ours; but what spark-defaults.conf says counts. Whoever lists processes sees no
    secret, and the terminal nothing but the job."""
    told = launched["python"].finish()
    assert "SparkSubmit" in (java := told.pop("java"))
    assert "hunter" not in java
    assert told.pop("secret") == " hunter=2: \\ü"
    assert launched["python"].noise == []
    assert "spark-sql-kafka-0-10" in java, "on the class path: tasks run in the driver"
    assert not told.pop("spark.jars")
    assert told == {**OURS, ARROW_ROWS: "7777", "python": sys.executable}


def test_spark_submit(launched: dict[str, Launch]) -> None:
    """Whatever --master and --conf say stays as it is."""
    told = launched["submit"].finish()
    del told["spark.jars"]
    assert told == {"spark.master": "local[2]", **THEIRS, "python": sys.executable}


def test_penstock_run(launched: dict[str, Launch]) -> None:
    """Also where a file only defines its job."""
    launched["run"].finish()
    assert launched["run"].noise == []


def test_a_running_session_keeps_its_settings(session: SparkSession) -> None:
    """Made in this thread or in another one: it is that session, as it is."""
    from pyspark.sql import SparkSession as Session

    # Other tests may have made sessions of their own that are active in this thread: those two may differ.
    sessions: list[Any] = [session, Session._instantiatedSession]
    before = [one.conf.get(SHUFFLE) for one in sessions]
    for one in sessions:
        one.conf.set(SHUFFLE, "5")
    found: list[SparkSession] = []

    def ask() -> None:
        found.append(make_session("other", conf={SHUFFLE: "9"}, jars=["spark-kafka"], local_storage=True))

    ask()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert all(one.sparkContext is session.sparkContext for one in found)
    assert [one.conf.get(SHUFFLE) for one in found] == ["5", "5"]
    assert [one.conf.get(SHUFFLE) for one in sessions] == ["5", "5"]
    for one, value in zip(sessions, before, strict=True):
        one.conf.set(SHUFFLE, value)


@pytest.fixture
def example(session: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    monkeypatch.setenv("KAFKA", kafka.servers)
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("ROWS", "100000")
    return Example(kafka, tmp_path / "archive", monkeypatch)


class Example:
    """Runs an example as a user would, in this process and its session."""

    def __init__(self, kafka: Kafka, archive: Path, patch: pytest.MonkeyPatch) -> None:
        self._kafka, self._archive, self._patch = kafka, archive, patch

    def run(self, name: str, topic: str | None = None) -> list[Any]:
        """What is in its topic afterwards, run twice: the second time there is nothing left to do."""
        target = self._kafka.topic()
        if topic is not None:
            self._patch.setenv(topic, target)
        for _ in range(2):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return [json.loads(value or b"null") for _, value in self._kafka.read(target)]

    def archived(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = ds.dataset([str(p) for p in self._archive.glob("part-*")]).to_table().to_pylist()
        return rows


def test_example_totals(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    windows = example.run("totals", "TOTALS")
    assert "'committed'" in capsys.readouterr().out
    assert len({(row["minute"], row["branch"]) for row in windows}) == len(windows)
    # A row every millisecond: 100 seconds. Only the first minute is closed, and every row of it counted.
    assert sum(row["payments"] for row in windows) == 60_000


def test_example_epoch_two_outputs(example: Example) -> None:
    alerts = example.run("epoch_two_outputs", "ALERTS")
    rows = example.archived()
    assert Counter(row["id"] for row in rows) == Counter(range(100_000))
    assert Counter(row["id"] for row in alerts) == Counter(row["id"] for row in rows if row["amount"] > 9000)


def test_example_dropin(example: Example) -> None:
    assert Counter(example.run("dropin", "NUMBERS")) == Counter(range(100_000))


def test_example_generator_to_files(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    example.run("generator_to_files")
    assert "files in" in capsys.readouterr().out
    rows = example.archived()
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["amount"] >= Decimal(100) for row in rows)
    assert 98_000 < len(rows) < 100_000


def test_every_example_is_short_and_run_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert len([line for line in path.read_text().splitlines() if line.strip()]) < 60, path
        assert f'"{path.stem}' in tests, path
