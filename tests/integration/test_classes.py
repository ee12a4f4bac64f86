"""Java sources become jars, once, with the Janino that Spark ships."""

from __future__ import annotations

import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import DevelopmentError
from penstock.supply import jars

SOURCE = 'package one; public final class Greeting { public static String say() { return "hello"; } }\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a source in it, and a cache of its own."""
    folder = tmp_path / "greetings"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "Greeting.java").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "greetings", raising=False)
    return folder


def test_a_jar_is_made_once_and_names_its_source(package: Path) -> None:
    jar = jars.compiled("greetings", "Greeting", [])
    with zipfile.ZipFile(jar) as opened:
        assert opened.namelist() == ["META-INF/MANIFEST.MF", "one/Greeting.class"]
        assert sha256(SOURCE.encode()).hexdigest() in opened.read("META-INF/MANIFEST.MF").decode()
    made = jar.stat().st_mtime_ns
    assert jars.compiled("greetings", "Greeting", []) == jar
    assert jar.stat().st_mtime_ns == made


def test_another_source_is_another_jar(package: Path) -> None:
    first = jars.compiled("greetings", "Greeting", [])
    (package / "Greeting.java").write_text(SOURCE.replace("hello", "good day"))
    second = jars.compiled("greetings", "Greeting", [])
    assert second != first
    assert first.exists()


def test_a_source_that_does_not_compile_is_named_and_leaves_nothing(package: Path) -> None:
    (package / "Greeting.java").write_text(SOURCE.replace('"hello"', "nothing"))
    with pytest.raises(DevelopmentError, match=r"(?s)Greeting\.java could not be compiled.*nothing"):
        jars.compiled("greetings", "Greeting", [])
    assert not list((package.parent / "cache" / "classes").glob("*.jar"))


def test_without_spark_s_jars_the_error_says_what_is_missing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_spark_jars", lambda *_: [])
    with pytest.raises(DevelopmentError, match="janino"):
        jars.compiled("greetings", "Greeting", [])
