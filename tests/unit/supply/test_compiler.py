"""When C2 compiles a method: later on few cores, unless the user speaks of compilers; and Java has the flags."""

from __future__ import annotations

import os
import subprocess

import pytest

from penstock.spark.session import java_environment
from penstock.supply.java import compiler_options, find_java

OPTIONS = ["-cp", "/opt/Compilers/*", "-Xmx1g"]


def test_only_on_few_cores() -> None:
    assert compiler_options(OPTIONS, cores=2)
    assert compiler_options(OPTIONS, cores=16) == []


@pytest.mark.parametrize(
    "option",
    [
        "-XX:Tier4InvocationThreshold=5000",
        "-XX:TieredStopAtLevel=1",
        "-XX:-TieredCompilation",
        "-XX:CICompilerCount=8",
        "-Xint",
        "-Xcomp",
    ],
)
def test_a_user_s_own_options_about_compilers_win(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler_options([*OPTIONS, option], cores=2) == []
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Dx=y {option}")
    with java_environment({}):
        assert "Tier4" not in os.environ["SPARK_SUBMIT_OPTS"]


def test_java_knows_the_words() -> None:
    options = compiler_options(OPTIONS, cores=2)
    printed = subprocess.run(
        [str(find_java().java), *options, "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = {line.split()[1]: line.split()[3] for line in printed.stdout.splitlines() if " Tier4" in line}
    for option in options:
        name, _, value = option.removeprefix("-XX:").partition("=")
        assert words[name] == value
