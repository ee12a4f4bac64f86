"""A JVM that is started before a program asks for one: taken where it is what is asked for, ended where it is not.
Javas here are shell scripts."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.supply import early
from tests.support.waiting import until

WAITS = "#!/bin/sh\nread line\n"


class World:
    """One program of a user with a cache of its own; each `process` of it knows nothing of the last."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        self.java = folder / "java"
        self.java.write_text(WAITS)
        self.java.chmod(0o755)
        self.begun: list[early.StartedJava] = []

    def process(self, program: str = "job.py") -> early.StartedJava | None:
        self._patch.setattr(early, "_early", None)
        early.begin(self.folder / program)
        assert early._early is not None
        if early._early.java is not None:
            self.begun.append(early._early.java)
        return early._early.java

    def ask(self, *arguments: str, **more: str) -> early.StartedJava | None:
        """As a program that has set `more` in its own environment."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            return early.adopt([str(self.java), *arguments], {**os.environ, "SPARK_HOME": "/spark"})

    def notes(self) -> list[Path]:
        return sorted((self.folder / "cache" / "java").glob("early-*.json"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    world = World(tmp_path, monkeypatch)
    yield world
    for java in world.begun:
        java.end()


def test_what_was_asked_for_last_time_is_there_the_next(world: World) -> None:
    assert world.process() is None
    assert world.ask("-Xmx1g") is None
    begun = world.process()
    assert begun is not None
    assert world.ask("-Xmx1g") is begun
    assert begun.process.poll() is None
    assert world.ask("-Xmx1g") is None, "it is given away once"
    [note] = world.notes()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600


def test_each_program_has_its_own(world: World) -> None:
    world.process()
    world.ask("-Xmx1g")
    assert world.process("other.py") is None


def test_what_does_not_fit_is_ended_and_not_guessed_for_ever(world: World) -> None:
    """A program that sets a variable, or asks for something else each time."""
    world.process()
    world.ask("-Xmx1g")
    for number in range(2):
        begun = world.process()
        assert begun is not None
        assert world.ask("-Xmx1g", OWN=str(number)) is None
        assert begun.process.poll() is not None
        assert not begun.told.parent.exists()
    assert world.process() is None
    assert world.ask("-Xmx1g") is None  # it has not changed its mind this time
    assert world.process() is not None


def test_one_that_died_meanwhile_is_not_taken(world: World) -> None:
    world.process()
    world.ask("-Xmx1g")
    begun = world.process()
    assert begun is not None
    begun.process.kill()
    until(lambda: begun.process.poll() is not None, "it to die")
    assert world.ask("-Xmx1g") is None


def test_it_ends_with_its_process(world: World) -> None:
    """Java reads from a pipe whose other end this process holds, and nobody else."""
    world.process()
    world.ask("-Xmx1g")
    begun = world.process()
    assert begun is not None
    assert begun.process.stdin is not None
    begun.process.stdin.close()
    assert begun.process.wait(30) is not None


@pytest.mark.parametrize("argument", ["-Dx.password=hunter2", "--properties-file"])
def test_what_names_a_secret_is_not_noted(world: World, argument: str) -> None:
    world.process()
    world.ask(argument)
    assert world.notes() == []


def test_a_note_that_cannot_be_read_is_none(world: World) -> None:
    world.process()
    world.ask("-Xmx1g")
    [note] = world.notes()
    for text in (
        "",
        "7",
        "{}",
        json.dumps({"version": 99}),
        json.dumps({"version": 1, "wrong": 0, "command": ["/no"]}),
    ):
        note.write_text(text)
        assert world.process() is None
    world.java.unlink()
    note.write_text(json.dumps({"version": 1, "wrong": 0, "command": [str(world.java)], "environment": {}}))
    assert world.process() is None


def test_what_another_user_could_have_written_is_not_carried_out(world: World) -> None:
    world.process()
    world.ask("-Xmx1g")
    [note] = world.notes()
    note.chmod(0o660)
    assert world.process() is None
    note.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(note, 12345, 12345)
        assert world.process() is None, "root is no exception"
        os.chown(note, 0, 0)
    assert world.process() is not None


def test_where_nobody_began_nothing_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that was started by `python`."""
    monkeypatch.setattr(early, "_early", None)
    assert world.ask("-Xmx1g") is None
    assert world.notes() == []
