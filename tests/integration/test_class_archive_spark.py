"""What an archive of classes does to the Java of a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark import warm_up
from penstock.spark.session import class_archive
from penstock.supply.java import ClassArchive

PACKAGES = Path(penstock.__file__).parents[1]

#: Starts Java with the settings it is given, and tells what the process was started with.
PROGRAM = """
import json, sys
from pyspark import SparkContext
from penstock.spark.session import _existing_settings
known = _existing_settings(json.loads(sys.argv[1]))
pid = SparkContext._gateway.proc.pid
told = {name: open(f"/proc/{pid}/{name}", "rb").read().decode().split(chr(0))[:-1] for name in ("cmdline", "environ")}
told["maps"] = open(f"/proc/{pid}/maps").read()
told["memory"] = known.get("spark.driver.memory")
print("TOLD" + json.dumps(told))
"""
Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts Java in a process of its own, with a cache of its own."""

    def run(conf: dict[str, str] | None = None, **more: str) -> dict[str, Any]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK", "JAVA_"))}
        environment = {**clean, "PYTHONPATH": str(PACKAGES), "PENSTOCK_CACHE": str(tmp_path / "cache"), **more}
        command = [sys.executable, "-c", PROGRAM, json.dumps(conf or {})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        before, found, told = done.stdout.partition("TOLD")
        assert found, done.stderr
        answer: dict[str, Any] = {**json.loads(told), "said": before + done.stderr}
        return answer

    return run


def test_a_broken_archive_only_costs_time(start: Start, tmp_path: Path) -> None:
    before = start()
    assert "jsa" not in str(before["cmdline"])
    archive = expected_archive(tmp_path / "cache")
    (tmp_path / "aside").write_bytes(b"not an archive" * 1000)
    archive.keep(tmp_path / "aside")
    after = start()
    assert f"-XX:SharedArchiveFile={archive.path}" in after["cmdline"]
    assert after["said"] == ""


@pytest.mark.long
def test_an_archive_is_made_and_taken(start: Start, tmp_path: Path) -> None:
    start()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK", "JAVA_"))}
    environment = {**clean, "PYTHONPATH": str(PACKAGES), "PENSTOCK_CACHE": str(tmp_path / "cache")}
    environment["PYSPARK_PYTHON"] = ""  # as in the program, which sets none
    subprocess.run([sys.executable, "-m", warm_up.__name__], env=environment, check=True, timeout=280)
    archive = expected_archive(tmp_path / "cache")
    assert archive.usable
    assert str(archive.path) in start()["maps"]


def expected_archive(cache: Path) -> ClassArchive:
    """Where the next JVM looks for its archive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(cache))
        patch.setenv("PYSPARK_PYTHON", "")  # as in the program, which sets none
        for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "JAVA_HOME"):
            patch.delenv(name, raising=False)
        archive = class_archive({}, ())
    assert archive is not None
    return archive
