"""Failpoints are how every other fault test kills things, so they must do exactly what they say."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.errors import ConfigurationError
from penstock.failpoints import ONCE, POINTS, RELEASE, VARIABLE, InjectedFault, failpoint, parse

PASS_THREE_TIMES = """
from penstock.failpoints import failpoint
for number in range(3):
    failpoint("epoch.decided")
    print(number, flush=True)
"""


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def use(text: str) -> None:
        monkeypatch.setenv(VARIABLE, text)
        failpoints.reload()

    yield use
    monkeypatch.undo()
    failpoints.reload()


def run(text: str | None, **more: str) -> tuple[int, list[str]]:
    environment = {key: value for key, value in os.environ.items() if key not in (VARIABLE, ONCE, RELEASE)} | more
    if text is not None:
        environment[VARIABLE] = text
    done = subprocess.run(
        [sys.executable, "-c", PASS_THREE_TIMES], env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout.split()


def test_off_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    failpoints.reload()
    for name in POINTS:
        failpoint(name)
    assert run(None) == (0, ["0", "1", "2"])
    assert run("") == (0, ["0", "1", "2"])


def test_only_the_named_point_acts(rules: Callable[[str], None]) -> None:
    rules("epoch.decided=raise")
    failpoint("epoch.opened")
    with pytest.raises(InjectedFault, match=r"epoch\.decided") as caught:
        failpoint("epoch.decided")
    assert caught.value.retryable


@pytest.mark.parametrize(
    "text",
    [
        "epoch.decided",
        "epoch.decided=",
        "epoch.decided=explode",
        "epoch.decided=crash@",
        "epoch.decided=crash@x",
        "epoch.decided=delay(soon)",
        "epoch.decided=delay(1.2.3)",
        "epoch.decided=delay",
        "epoch.decided=crash(3)",
        "epoch.decided=crash@0",
        "epoch.forgotten=crash",
        "epoch.opened=crash;=raise",
    ],
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names no failpoint"):
        parse(text)


def test_several_entries_with_spaces_and_empty_ones() -> None:
    found = parse(" epoch.decided=crash@3 ; task.written=delay(0.25);; ")
    assert list(found) == ["epoch.decided", "task.written"]
    assert (found["epoch.decided"].action, found["epoch.decided"].nth) == ("crash", 3)
    assert (found["task.written"].action, found["task.written"].seconds) == ("delay", 0.25)


def test_every_point_of_the_table_can_be_named() -> None:
    assert set(parse(";".join(f"{name}=crash" for name in POINTS))) == set(POINTS)
    assert set(POINTS.values()) == {"driver", "worker", "aside", "savepoint", "restore", "receiver", "power", "lanes"}


def test_a_crash_is_sigkill() -> None:
    assert run("epoch.decided=crash") == (-signal.SIGKILL, [])


def test_only_the_nth_passing_acts() -> None:
    assert run("epoch.decided=crash@3") == (-signal.SIGKILL, ["0", "1"])
    assert run("epoch.decided=crash@4") == (0, ["0", "1", "2"])


def test_the_nth_passing_only(rules: Callable[[str], None]) -> None:
    rules("epoch.decided=raise@2")
    failpoint("epoch.decided")
    with pytest.raises(InjectedFault):
        failpoint("epoch.decided")
    failpoint("epoch.decided")


def test_once_over_two_processes(tmp_path: Path) -> None:
    once = {ONCE: str(tmp_path)}
    assert run("epoch.decided=crash", **once) == (-signal.SIGKILL, [])
    assert run("epoch.decided=crash", **once) == (0, ["0", "1", "2"])
    assert [file.name for file in tmp_path.iterdir()] == ["epoch.decided"]


def test_a_delay_delays(rules: Callable[[str], None]) -> None:
    rules("epoch.decided=delay(0.2)")
    began = time.monotonic()
    failpoint("epoch.decided")
    assert time.monotonic() - began >= 0.2


def test_a_hang_lasts_until_it_is_released(
    rules: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    release = tmp_path / "go"
    monkeypatch.setenv(RELEASE, str(release))
    rules("epoch.decided=hang")
    thread = threading.Thread(target=failpoint, args=("epoch.decided",), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    release.touch()
    thread.join(10)
    assert not thread.is_alive()


def test_users_find_all_of_it_in_testing() -> None:
    public = importlib.import_module("penstock.testing.failpoints")
    for name in public.__all__:
        assert getattr(public, name) is getattr(failpoints, name)
    passed: list[str] = []
    with public.hooked("epoch.decided", lambda: passed.append("here")):
        failpoint("epoch.decided")
    assert passed == ["here"]
    own = {name for name, value in vars(failpoints).items() if getattr(value, "__module__", "") == failpoints.__name__}
    assert {name for name in own if not name.startswith("_")} <= set(public.__all__)
