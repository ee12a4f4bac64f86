"""Spark's folder without archives of Python sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.supply.java import slim_home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "pyspark"
    for name in ("jars", "bin", "sql", "python/lib"):
        (home / name).mkdir(parents=True)
    (home / "python" / "lib" / "pyspark.zip").touch()
    (home / "worker.py").touch()
    return home


def test_all_but_the_archives_is_there(home: Path) -> None:
    for _ in range(2):
        slim = slim_home(home)
        assert sorted(entry.name for entry in slim.iterdir()) == ["bin", "jars", "sql"]
        assert (slim / "jars").resolve() == home / "jars"


def test_without_a_place_to_write_it_is_left_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    assert slim_home(home) == home


def test_links_to_another_spark_are_not_taken(home: Path) -> None:
    slim = slim_home(home)
    (slim / "jars").unlink()
    (slim / "jars").symlink_to("/elsewhere")
    assert slim_home(home) == home
