"""Executors that are not like their driver, told by what they say and by how tasks on them fail."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
from pyspark import cloudpickle

from penstock.errors import ExecutorMismatch
from penstock.spark.executors import Worker, _probe, fault_in, importable, mismatch_in, require_alike

OWN = platform.python_version()


def alike(**other: Any) -> Worker:
    return Worker(**{"host": "w1", "python": OWN, "version": "0.1.0", "missing": None, **other})


def test_executors_like_the_driver_are_taken() -> None:
    require_alike([alike(), alike(python=f"{sys.version_info.major}.{sys.version_info.minor}.99")], "0.1.0")
    require_alike([], "0.1.0")


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"python": "3.8.2"}, r"on w1 run Python 3\.8\.2, the driver"),
        ({"version": "0.0.9"}, r"on w1 have Penstock 0\.0\.9, the driver 0\.1\.0"),
        ({"version": None, "missing": "ModuleNotFoundError: No module named 'penstock'"}, "No module named 'penstock'"),
        ({"missing": "ModuleNotFoundError: No module named 'redis'"}, "No module named 'redis'"),
        ({"version": "0.0.9", "missing": "No module named 'penstock.new'"}, r"on w1 have Penstock 0\.0\.9"),
    ],
)
def test_one_that_differs_is_named(other: dict[str, Any], named: str) -> None:
    with pytest.raises(ExecutorMismatch, match=named) as raised:
        require_alike([alike(), alike(**other)], "0.1.0")
    assert not raised.value.retryable
    assert "penstock pack" in raised.value.to_do


def test_what_asks_travels_without_penstock() -> None:
    """Where the package is missing, the question itself must not fail."""
    told = asked_without("penstock")
    assert told[0]["python"] == OWN
    assert told[0]["version"] is None
    assert "penstock" in told[0]["missing"]
    told = asked_without("penstock.sinks.kafka")
    assert (told[0]["version"], told[0]["missing"] is None) == ("0.1.0", False)


def asked_without(module: str) -> list[dict[str, Any]]:
    """What a Python says in which `module` cannot be imported."""
    program = (
        f"import json, sys; sys.modules[{module!r}] = None\n"
        "from pyspark import cloudpickle\n"
        "print(json.dumps(list(cloudpickle.loads(sys.stdin.buffer.read())(iter([0])))))"
    )
    asking = cloudpickle.dumps(_probe(["penstock.sinks.kafka"]))
    ran = subprocess.run([sys.executable, "-c", program], input=asking, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    return [asdict(Worker(*one)) for one in json.loads(ran.stdout)]


def test_only_what_the_driver_can_import_is_asked_for() -> None:
    assert importable(["penstock.sinks.kafka", "penstock.sinks.kafka.nothing", "__main__"]) == ["penstock.sinks.kafka"]


WORKER = "Traceback (most recent call last):\n  File pyspark/serializers.py, line 173, in _read_with_length\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{WORKER}ModuleNotFoundError: No module named 'penstock'", "lacks the package penstock"),
        (
            f"{WORKER}ModuleNotFoundError: No module named 'my_rules'",
            "lacks the module 'my_rules', which the job needs",
        ),
        (
            (
                "Error from python worker:\n  /usr/bin/python3: Error while finding module specification for"
                " 'penstock.spark.python_daemon' (ModuleNotFoundError: No module named 'penstock')"
            ),
            "lacks the package penstock",
        ),
        (
            (
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11,"
                " PySpark cannot run with different minor versions."
            ),
            "different version: 3.9",
        ),
        (
            'java.io.IOException: Cannot run program "./penstock-env/bin/python3": error=2, No such file or directory',
            "has no Python where it was told to look",
        ),
        ('Cannot run program "/opt/python3": Exec failed, error: 8 (Exec format error)', "has no Python"),
    ],
)
def test_a_task_that_could_not_begin_is_named(text: str, named: str) -> None:
    error = mismatch_in(text)
    assert isinstance(error, ExecutorMismatch)
    assert named in error.happened
    assert isinstance(fault_in(text), ExecutorMismatch)


@pytest.mark.parametrize(
    "text",
    [
        "Traceback:\n  File \"/job.py\", line 3, in my_udf\nModuleNotFoundError: No module named 'scipy'",
        'java.io.IOException: Cannot run program "chmod": error=2, No such file or directory',
        'java.io.IOException: Cannot run program "/usr/bin/python3": error=12, Cannot allocate memory',
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
    ],
)
def test_other_failures_keep_their_names(text: str) -> None:
    assert mismatch_in(text) is None
