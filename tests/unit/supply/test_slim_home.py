"""Spark's folder without archives of Python sources: where workers are this Python on this machine, nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.supply.slim_home import slim_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    home = tmp_path / "pyspark"
    for name in ("jars", "bin", "sql", "python/lib"):
        (home / name).mkdir(parents=True)
    (home / "python" / "lib" / "pyspark.zip").touch()
    (home / "worker.py").touch()
    return home


def test_all_but_the_archives_is_there(home: Path) -> None:
    for _ in range(2):
        slim = slim_home(home, {"spark.master": "local[2]"})
        assert sorted(entry.name for entry in slim.iterdir()) == ["bin", "jars", "sql"]
        assert (slim / "jars").resolve() == home / "jars"
    assert slim_home(home, {}) == slim


def test_workers_elsewhere_find_the_folder_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for master in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn"):
        assert slim_home(home, {"spark.master": master}) == home
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")
    assert slim_home(home, {}) == home


def test_without_a_place_to_write_it_is_left_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    assert slim_home(home, {}) == home


def test_links_to_another_spark_are_not_taken(home: Path) -> None:
    slim = slim_home(home, {})
    (slim / "jars").unlink()
    (slim / "jars").symlink_to("/elsewhere")
    assert slim_home(home, {}) == home
