"""When an archive of classes is used and how it is made, and Spark's folder without archives of Python sources. That
Java takes them: tests/integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import warm_up
from penstock.supply import java as java_module
from penstock.supply.java import ClassArchive, JavaHome

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
    archive.keep(aside)
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


def test_a_rehearsal_writes_to_another_name(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(java_module.TARGET, "/there/aside")
    assert "-XX:ArchiveClassesAtExit=/there/aside" in archive.java_options()
    assert not any("SharedArchiveFile" in option for option in archive.java_options())


def test_the_oldest_are_deleted(java: JavaHome, tmp_path: Path) -> None:
    archives = [ClassArchive(java, tmp_path / "spark", (), [f"set-{number}"]) for number in range(8)]
    archives[0].path.parent.mkdir(parents=True)
    for age, archive in enumerate(archives):
        (tmp_path / "aside").write_text("classes")
        archive.keep(tmp_path / "aside")
        os.utime(archive.path, (age + 1, age + 1))
    (tmp_path / "aside").write_text("classes")
    archives[7].keep(tmp_path / "aside")
    assert [archive.usable for archive in archives] == [False] * 2 + [True] * 6
    assert len(list(archives[0].path.parent.iterdir())) == 12, "an archive and its length, six times"


def test_what_is_not_complete_never_has_the_name(
    java: JavaHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rehearsal that fails leaves nothing; the next one may succeed, and is the last one."""
    archive = ClassArchive(java, tmp_path / "spark", (), ["spark-kafka"])
    rehearsals: list[Any] = []

    def fail(aside: Path, jars: Any) -> None:
        aside.write_text("half of it")
        raise RuntimeError("Java is gone")

    def succeed(aside: Path, jars: Any) -> None:
        rehearsals.append(jars)
        aside.write_text("classes")

    monkeypatch.setattr(warm_up, "class_archive", lambda conf, jars: archive)
    monkeypatch.setattr(warm_up, "_rehearse", fail)
    with pytest.raises(RuntimeError):
        warm_up.make_archive(["spark-kafka"])
    assert not archive.usable
    assert [file.suffix for file in archive.path.parent.iterdir()] == [".lock"]
    monkeypatch.setattr(warm_up, "_rehearse", succeed)
    for _ in range(2):
        assert warm_up.make_archive(["spark-kafka"]) == archive.path
    assert archive.usable
    assert rehearsals == [["spark-kafka"]]
