"""When C2 takes a method up: ours where nobody has said anything, and a Java that knows the words."""

from __future__ import annotations

import subprocess

import pytest

from penstock.spark.compiler import java_options
from penstock.spark.java import find_java


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "said",
    ["-XX:Tier4InvocationThreshold=5000", "-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-Xint", "-Xcomp"],
)
def test_whoever_says_something_of_compilers_is_left_alone(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_options(["-cp", "/jars/*", "-Xmx1g"])
    assert java_options(["-cp", "/jars/*", "-Xmx1g", said]) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Dx=y {said}")
    assert java_options(["-Xmx1g"]) == []


def test_java_knows_the_words() -> None:
    told = subprocess.run(
        [str(find_java().java), *java_options([]), "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = {line.split()[1]: line.split()[3] for line in told.stdout.splitlines() if " Tier4" in line}
    for option in java_options([]):
        name, _, value = option.removeprefix("-XX:").partition("=")
        assert words[name] == value
