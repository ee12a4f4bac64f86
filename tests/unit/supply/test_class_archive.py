"""When an archive of classes is used and when it is made; which is which. That Java takes it: tests/integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import rehearsal
from penstock.supply import class_archive
from penstock.supply.class_archive import archive_path, java_options, keep, loaded_file, make_later, tried_file
from penstock.supply.java import JavaHome


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JavaHome:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    for name in (class_archive.TARGET, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "jdk" / "lib").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "modules").touch()
    (tmp_path / "jars").mkdir()
    return JavaHome(tmp_path / "jdk", 17, "JAVA_HOME")


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return ["-cp", f"{tmp_path}/conf:{tmp_path}/jars/*", "-Xmx1g", "-XX:-CompactStrings", "-Dpassword=x"]


@pytest.fixture
def archive(java: JavaHome, options: list[str]) -> Path:
    """One that is there."""
    path = archive_path(java, options)
    path.parent.mkdir(parents=True)
    aside = path.with_suffix(".aside")
    aside.write_text("classes")
    keep(aside, path)
    return path


def test_an_archive_is_used_once_it_is_there(java: JavaHome, options: list[str]) -> None:
    assert java_options(java, options) == []
    path = archive_path(java, options)
    path.parent.mkdir(parents=True)
    aside = path.with_suffix(".aside")
    aside.write_text("classes")
    keep(aside, path)
    assert f"-XX:SharedArchiveFile={path}" in java_options(java, options)


def test_one_that_was_cut_off_or_is_distrusted_is_not_used(java: JavaHome, options: list[str], archive: Path) -> None:
    """Java would read beyond its end, and die."""
    assert java_options(java, options) != []
    archive.chmod(0o600)
    archive.write_text("cla")
    assert java_options(java, options) == []
    archive.write_text("classes")
    assert java_options(java, options) != []
    class_archive.distrust(java, options)
    assert not archive.exists()
    class_archive.distrust(java, options)


def test_each_kind_of_jvm_has_its_own(java: JavaHome, options: list[str], tmp_path: Path) -> None:
    def name(*given: str) -> str:
        return archive_path(java, given).name

    before = name(*options)
    same = [one for one in options if not one.startswith(("-Xmx", "-D"))]
    assert name(*same, "-Xmx8g", "-Xss4m", "-Dpassword=y") == before
    assert name(*options, "-XX:-UseCompressedOops") != before
    assert name("-cp", "/elsewhere/*", "-Xmx1g", "-XX:-CompactStrings") != before
    assert name(*options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1") == before  # as seen with Java 17
    assert name(*options, "-XX:+UseZGC") != before  # takes none of another's
    assert name() != before
    os.utime(tmp_path / "jars", ns=(1, 1))  # another Spark in the same place
    assert name(*options) != before
    changed = name(*options)
    os.utime(tmp_path / "jdk" / "lib" / "modules", ns=(1, 1))  # another Java in the same place
    assert name(*options) != changed


@pytest.mark.usefixtures("archive")
def test_whoever_speaks_of_archives_is_left_alone(
    java: JavaHome, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for own in ("-XX:SharedArchiveFile=/theirs", "-Xshare:off", "-XX:ArchiveClassesAtExit=/theirs"):
        assert java_options(java, [*options, own]) == []
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:off")
    assert java_options(java, options) == []


def test_what_others_could_have_written_is_not_used(java: JavaHome, options: list[str], archive: Path) -> None:
    archive.chmod(0o620)
    assert java_options(java, options) == []
    archive.unlink()
    archive.symlink_to("/dev/null")
    assert java_options(java, options) == []


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
    monkeypatch.setattr(class_archive.threading, "Timer", timers)  # type: ignore[attr-defined]
    return timers


def test_it_is_made_where_there_is_none(java: JavaHome, options: list[str], timers: Timers) -> None:
    make_later(java, options, ["spark-kafka"])
    [(target, flags, jars)] = timers.made
    assert target == archive_path(java, options)
    assert jars == ["spark-kafka"]
    assert flags == ["-XX:-CompactStrings"]  # no setting that could hold a secret


def test_none_is_made_where_classes_may_come_from_a_folder(
    java: JavaHome, options: list[str], timers: Timers, tmp_path: Path
) -> None:
    """As with settings of the user's own; Java would refuse to start."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    make_later(java, options)
    assert timers.made == []


def test_it_is_made_once(java: JavaHome, options: list[str], timers: Timers, archive: Path) -> None:
    make_later(java, options)
    archive.unlink()
    tried_file(archive).touch()  # some class paths allow none
    make_later(java, options)
    assert timers.made == []


def test_another_day_is_worth_another_attempt(
    java: JavaHome, options: list[str], timers: Timers, archive: Path
) -> None:
    """A machine that was too busy to make one in time need not be so for ever."""
    archive.unlink()
    os.utime(tried_file(archive), (1, 1))
    make_later(java, options)
    assert len(timers.made) == 1


def test_a_rehearsal_writes_and_does_not_ask_for_another(
    java: JavaHome, options: list[str], timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(class_archive.TARGET, "/there/aside")
    assert "-XX:ArchiveClassesAtExit=/there/aside" in java_options(java, options)
    make_later(java, options)
    assert timers.made == []


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    files = [tmp_path / f"classes-{number}.jsa" for number in range(5)]
    for age, file in enumerate(files):
        (tmp_path / "aside").touch()
        tried_file(file).touch()
        keep(tmp_path / "aside", file)
        os.utime(file, (age + 1, age + 1))
    (tmp_path / "aside").touch()
    keep(tmp_path / "aside", files[4])
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

    monkeypatch.setattr(rehearsal, "_rehearse", fail)
    (folder / "classes-1.4711").touch()  # of one that was killed
    with pytest.raises(RuntimeError):
        rehearsal.make_archive(target, [], [])
    assert sorted(file.name for file in folder.iterdir()) == ["classes-1.lock", "classes-1.tried"]
    rehearsal.make_archive(target, [], [])
    monkeypatch.setattr(rehearsal, "_rehearse", lambda aside, *given: aside.write_text(repr(given)))
    tried_file(target).unlink()
    loaded_file(target).write_text("org.one\norg.other")
    rehearsal.make_archive(target, ["spark-kafka"], ["-XX:+UseG1GC"])
    assert target.read_text() == repr((["spark-kafka"], ["-XX:+UseG1GC"], ["org.one", "org.other"]))
    assert not loaded_file(target).exists()
