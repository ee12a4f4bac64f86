"""Java started directly is the Java that spark-submit would have started; and what an archive of classes does to it."""

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
from penstock.spark import rehearsal
from penstock.supply import class_archive
from penstock.supply.java import DROPPED, find_java

PACKAGES = Path(penstock.__file__).parents[1]

#: Starts Java with the settings it is given, and tells what the process was started with.
PROGRAM = """
import json, sys
from pyspark import SparkContext
from penstock.spark.session import _given
known = _given(json.loads(sys.argv[1]), archive=True)
pid = SparkContext._gateway.proc.pid
told = {name: open(f"/proc/{pid}/{name}", "rb").read().decode().split(chr(0))[:-1] for name in ("cmdline", "environ")}
told["maps"] = open(f"/proc/{pid}/maps").read()
told["memory"] = known.get("spark.driver.memory")
print("TOLD" + json.dumps(told))
"""
#: What shells leave behind, what differs in each start, and what chooses the way; a folder of links: see `slim_home`.
APART = {
    "SPARK_HOME",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "_",
    "SPARK_BEELINE_OPTS",
    "_PYSPARK_DRIVER_CONN_INFO_PATH",
    "PYSPARK_SUBMIT_ARGS",
}

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


def test_it_is_the_java_that_spark_submit_starts(start: Start, tmp_path: Path) -> None:
    """The same options and arguments, and those for its compilers; the same environment; settings of the user's at
    their place."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dfrom=defaults\n")
    conf = {"spark.driver.memory": "600m", "spark.a": "b c"}
    own = {"SPARK_CONF_DIR": str(tmp_path / "conf"), "SPARK_SUBMIT_OPTS": "-Dfrom=environment"}
    direct = start(conf, **own)
    submitted = start(conf, **own, PYSPARK_SUBMIT_ARGS="pyspark-shell")
    started = [one for one in direct["cmdline"] if not one.startswith("-XX:Tier4")]  # see `compiler`
    main = started.index("org.apache.spark.deploy.SparkSubmit")
    assert started[:main] == submitted["cmdline"][:main]
    assert sorted(started[main:]) == sorted(submitted["cmdline"][main:])
    assert {"-Xmx600m", "-Dfrom=defaults", "-Dfrom=environment", "spark.a=b c"} <= set(direct["cmdline"])
    assert direct["memory"] == "600m"

    def variables(told: dict[str, Any]) -> dict[str, str]:
        pairs = (one.partition("=") for one in told["environ"])
        return {name: value for name, _, value in pairs if name not in APART}

    assert variables(direct) == variables(submitted)
    assert list((tmp_path / "cache" / "java").glob("launch-*.json"))


def test_a_broken_archive_only_costs_time(start: Start, tmp_path: Path) -> None:
    before = start()
    assert "jsa" not in str(before["cmdline"])
    archive = expected_archive(tmp_path / "cache", before)
    aside = archive.with_suffix(".aside")
    aside.write_bytes(b"not an archive" * 1000)
    class_archive.keep(aside, archive)
    told = start()
    assert f"-XX:SharedArchiveFile={archive}" in told["cmdline"]
    assert told["said"] == ""


@pytest.mark.long
def test_an_archive_is_made_and_taken(start: Start, tmp_path: Path) -> None:
    archive = expected_archive(tmp_path / "cache", start())
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK", "JAVA_"))}
    environment = {**clean, "PYTHONPATH": str(PACKAGES), "PENSTOCK_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", rehearsal.__name__, str(archive), ""]
    subprocess.run(command, env=environment, check=True, timeout=280)
    assert archive.exists()
    assert str(archive) in start()["maps"]


def expected_archive(cache: Path, told: dict[str, Any]) -> Path:
    """Where the next JVM like the one that was `told` of looks for its archive."""
    [kept] = (cache / "java").glob("launch-*.json")
    answer = json.loads(kept.read_text())["command"]
    options = [one for one in answer[1 : answer.index("org.apache.spark.deploy.SparkSubmit")] if one != DROPPED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(cache))
        [home] = [one.partition("=")[2] for one in told["environ"] if one.startswith("JAVA_HOME=")]
        patch.setenv("JAVA_HOME", home)
        return class_archive.archive_path(find_java(), options)
