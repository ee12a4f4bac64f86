"""What `import penstock` gives, what it costs, and that it works without any connector's libraries."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import penstock

NAMES = [
    "Avro", "CheckpointInfo", "Checkpoints", "Committable", "Committer", "DataGenSource", "DeltaSink", "Epoch",
    "FileSink", "FileSource", "Guarantee", "IcebergSink", "Job", "Json", "JsonSchema", "KafkaSink", "KafkaSource",
    "Mode", "MySqlSink", "Outcome", "PenstockError", "PostgresSink", "Protobuf", "RedisSink", "RestartStrategy",
    "Retention", "Sink", "SocketSource", "Source", "StateBackend", "StreamSink", "TwoPhaseSink", "WriteAheadSink",
    "Writer", "exactly_once", "parse",
]  # fmt: skip

BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        clients = {"confluent_kafka", "kafka", "psycopg", "pymysql", "redis", "pyiceberg", "deltalake"}
        if name.partition(".")[0] in clients:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def python(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_names_are_these() -> None:
    """A new name is a promise: add it here, to the reference and to the changelog."""
    assert sorted(penstock.__all__) == sorted(NAMES)
    assert penstock.__all__ == sorted(penstock.__all__, key=lambda name: (name.islower(), name))


def test_nothing_else_looks_public() -> None:
    public = [name for name in dir(penstock) if not name.startswith("_")]
    assert {name for name in public if not inspect.ismodule(getattr(penstock, name))} == set(NAMES)
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        penstock.Jobb  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_every_name_says_what_it_is(name: str) -> None:
    value = getattr(penstock, name)
    assert value.__name__ == name
    assert value.__module__.startswith("penstock.")
    assert inspect.getdoc(value)


def test_importing_is_light() -> None:
    heavy = ["pyspark", "pyarrow", "numpy", "pandas", "confluent_kafka", "kafka", "py4j"]
    # StreamSink extends a class of PySpark's.
    script = "import sys, penstock; [getattr(penstock, name) for name in penstock.__all__ if name != 'StreamSink']"
    assert python(f"{script}; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_a_task_imports_neither_the_job_nor_its_servers() -> None:
    """Every Python worker imports it; a name is imported when it is first used."""
    there = python("import sys, penstock.engine.task, penstock.sinks.kafka; print(*sys.modules)").split()
    assert "penstock.sinks.kafka" in there
    assert {"penstock.job.job", "starlette", "pyspark"}.isdisjoint(there)


def test_everything_imports_without_the_connectors_libraries() -> None:
    script = f"""{BLOCKED}
import penstock
for name in penstock.__all__:
    getattr(penstock, name)
job = penstock.Job("job")
sink = penstock.KafkaSink("topic", servers="localhost:9092", options={{"sasl.password": "secret"}})
source = penstock.KafkaSource("topic", servers="localhost:9092")
print(repr(sink), source, sink.link("out").guarantee, source.link("in").guarantee)
"""
    said = python(script)
    assert "exactly-once exactly-once" in said
    assert "secret" not in said


@pytest.mark.parametrize("kind", ["sink", "source"])
def test_a_missing_library_is_named_where_it_is_needed(kind: str) -> None:
    made = {"sink": "KafkaSink", "source": "KafkaSource"}[kind]
    script = f"""{BLOCKED}
import penstock
from penstock.errors import MissingExtra
from penstock.contracts.sink import CheckContext
try:
    penstock.{made}("topic", servers="localhost:1").check(CheckContext("job", 1.0, 10.0), "uid")
except MissingExtra as error:
    print(error)
"""
    said = python(script)
    assert "penstock[kafka]" in said
    assert "nothing was started" in said
