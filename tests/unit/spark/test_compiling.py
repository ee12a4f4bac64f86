"""Where Java compiles later: on few cores, and where nobody has said anything about it."""

from __future__ import annotations

import pytest

from penstock.spark.compiling import compiler_options

SPARKS = ["-cp", "/opt/Compilers/*", "-Xmx1g", "-XX:+IgnoreUnrecognizedVMOptions"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_on_few_cores_the_better_compiler_waits() -> None:
    assert "-XX:Tier4InvocationThreshold=15000" in compiler_options(SPARKS, cores=2)
    assert compiler_options(SPARKS, cores=16) == []


def test_whoever_speaks_of_compiling_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in ("-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-Xint", "-XX:CICompilerCount=8"):
        assert compiler_options([*SPARKS, own], cores=2) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:Tier4InvocationThreshold=1")
    assert compiler_options(SPARKS, cores=2) == []


def test_a_java_that_would_not_start_with_what_it_does_not_know_is_left_alone() -> None:
    assert compiler_options(["-Xmx1g"], cores=2) == []
