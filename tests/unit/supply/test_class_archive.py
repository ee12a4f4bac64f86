"""When an archive of classes is used and when it is made, and Spark's folder without archives of Python sources. That
Java takes them: tests/integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import warm_up
from penstock.supply import java as java_module
from penstock.supply.java import ClassArchive, JavaHome, keep_archive, slim_home, tried_file

OPTIONS = ("-Xmx1g", "-XX:-CompactStrings", "-Dpassword=x")


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JavaHome:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(java_module.TARGET, raising=False)
    (tmp_path / "jdk" / "lib").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "modules").touch()
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return JavaHome(tmp_path / "jdk", 17, "JAVA_HOME")


@pytest.fixture
def archive(java: JavaHome, tmp_path: Path) -> ClassArchive:
    """One that is there."""
    archive = ClassArchive(java, tmp_path / "spark", OPTIONS, [])
    archive.path.parent.mkdir(parents=True)
    aside = archive.path.with_suffix(".aside")
    aside.write_text("classes")
    keep_archive(aside, archive.path)
    return archive


def test_an_archive_is_used_once_it_is_there(archive: ClassArchive) -> None:
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.java_options()
    archive.path.unlink()
    assert archive.java_options() == []


def test_one_that_was_cut_off_or_is_distrusted_is_not_used(archive: ClassArchive) -> None:
    """Java would read beyond its end, and die."""
    archive.path.chmod(0o600)
    archive.path.write_text("cla")
    assert archive.java_options() == []
    archive.path.write_text("classes")
    assert archive.java_options() != []
    archive.distrust()
    assert not archive.path.exists()
    archive.distrust()


def test_each_kind_of_jvm_has_its_own(java: JavaHome, tmp_path: Path) -> None:
    def name(*options: str, home: str = "spark", jars: tuple[str, ...] = ()) -> str:
        return ClassArchive(java, tmp_path / home, options, jars).path.name

    before = name(*OPTIONS)
    assert name("-XX:-CompactStrings", "-Xmx8g", "-Xss4m", "-Dpassword=y") == before
    assert name(*OPTIONS, "-XX:-UseCompressedOops") != before
    assert name(*OPTIONS, home="elsewhere") != before
    assert name(*OPTIONS, jars=("spark-kafka",)) != before
    assert name(*OPTIONS, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1") == before  # as seen with Java 17
    assert name(*OPTIONS, "-XX:+UseZGC") != before  # takes none of another's
    os.utime(tmp_path / "spark" / "jars", ns=(1, 1))  # another Spark in the same place
    assert name(*OPTIONS) != before
    changed = name(*OPTIONS)
    os.utime(tmp_path / "jdk" / "lib" / "modules", ns=(1, 1))  # another Java in the same place
    assert name(*OPTIONS) != changed


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=/theirs", "-Xshare:off", "-XX:ArchiveClassesAtExit=/theirs"])
def test_a_user_s_own_options_about_archives_win(java: JavaHome, tmp_path: Path, own: str) -> None:
    assert ClassArchive(java, tmp_path / "spark", [*OPTIONS, own], []).java_options() == []


def test_what_others_could_have_written_is_not_used(archive: ClassArchive) -> None:
    archive.path.chmod(0o620)
    assert archive.java_options() == []
    archive.path.unlink()
    archive.path.symlink_to("/dev/null")
    assert archive.java_options() == []


class Timers:
    """Takes the place of `threading.Timer`; nothing is started."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def __call__(self, seconds: float, function: Any, arguments: tuple[Any, ...]) -> Timers:
        self.made.append(arguments)
        return self

    def start(self) -> None:
        pass


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(java_module.threading, "Timer", timers)  # type: ignore[attr-defined]
    return timers


def test_it_is_made_where_there_is_none(java: JavaHome, timers: Timers, tmp_path: Path) -> None:
    archive = ClassArchive(java, tmp_path / "spark", OPTIONS, ["spark-kafka"])
    archive.make_later()
    # No setting that could hold a secret.
    assert timers.made == [(archive.path, tmp_path / "spark", ["spark-kafka"], ["-XX:-CompactStrings"])]


def test_it_is_made_once(timers: Timers, archive: ClassArchive) -> None:
    archive.make_later()
    archive.path.unlink()
    tried_file(archive.path).touch()  # some class paths allow none
    archive.make_later()
    assert timers.made == []


def test_another_day_is_worth_another_attempt(timers: Timers, archive: ClassArchive) -> None:
    """A machine that was too busy to make one in time need not be so for ever."""
    archive.path.unlink()
    os.utime(tried_file(archive.path), (1, 1))
    archive.make_later()
    assert len(timers.made) == 1


def test_a_rehearsal_writes_and_does_not_ask_for_another(
    archive: ClassArchive, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(java_module.TARGET, "/there/aside")
    archive.path.unlink()
    assert "-XX:ArchiveClassesAtExit=/there/aside" in archive.java_options()
    archive.make_later()
    assert timers.made == []


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    files = [tmp_path / f"classes-{number}.jsa" for number in range(5)]
    for age, file in enumerate(files):
        (tmp_path / "aside").touch()
        tried_file(file).touch()
        keep_archive(tmp_path / "aside", file)
        os.utime(file, (age + 1, age + 1))
    (tmp_path / "aside").touch()
    keep_archive(tmp_path / "aside", files[4])
    assert sorted(file.name for file in tmp_path.glob("*.jsa")) == [f"classes-{n}.jsa" for n in (2, 3, 4)]
    assert sorted(file.name for file in tmp_path.glob("*.tried")) == [f"classes-{n}.tried" for n in (2, 3, 4)]


def test_what_is_not_complete_never_has_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal that fails leaves nothing, and is not tried again."""
    folder = tmp_path / "folder"
    folder.mkdir()
    target = folder / "classes-1.jsa"

    def fail(aside: Path, *given: Any) -> None:
        aside.write_text("half of it")
        raise RuntimeError("Java is gone")

    monkeypatch.setattr(warm_up, "_rehearse", fail)
    (folder / "classes-1.4711").touch()  # of one that was killed
    with pytest.raises(RuntimeError):
        warm_up.make_archive(target, [], [])
    assert sorted(file.name for file in folder.iterdir()) == ["classes-1.lock", "classes-1.tried"]
    warm_up.make_archive(target, [], [])
    monkeypatch.setattr(warm_up, "_rehearse", lambda aside, *given: aside.write_text(repr(given)))
    tried_file(target).unlink()
    warm_up.make_archive(target, ["spark-kafka"], ["-XX:+UseG1GC"])
    assert target.read_text() == repr((["spark-kafka"], ["-XX:+UseG1GC"]))


# Spark's folder


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
