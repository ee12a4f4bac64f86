"""When C2 takes a method up: ours on few cores where nobody has said anything, and a Java that knows the words."""

from __future__ import annotations

import subprocess

import pytest

from penstock.supply.compiler import java_options
from penstock.supply.java import find_java

SPARKS = ["-cp", "/opt/Compilers/*", "-Xmx1g", "-XX:+IgnoreUnrecognizedVMOptions"]


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_only_on_few_cores() -> None:
    assert java_options(SPARKS, cores=2)
    assert java_options(SPARKS, cores=16) == []


@pytest.mark.parametrize(
    "said",
    [
        "-XX:Tier4InvocationThreshold=5000",
        "-XX:TieredStopAtLevel=1",
        "-XX:-TieredCompilation",
        "-XX:CICompilerCount=8",
        "-Xint",
        "-Xcomp",
    ],
)
def test_whoever_says_something_of_compilers_is_left_alone(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_options([*SPARKS, said], cores=2) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Dx=y {said}")
    assert java_options(SPARKS, cores=2) == []


def test_a_java_that_would_not_start_with_what_it_does_not_know_is_left_alone() -> None:
    assert java_options(["-Xmx1g"], cores=2) == []


def test_java_knows_the_words() -> None:
    options = java_options(SPARKS, cores=2)
    told = subprocess.run(
        [str(find_java().java), *options, "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = {line.split()[1]: line.split()[3] for line in told.stdout.splitlines() if " Tier4" in line}
    for option in options:
        name, _, value = option.removeprefix("-XX:").partition("=")
        assert words[name] == value
