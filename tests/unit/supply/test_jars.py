"""Locked jars: verified before use, brought once, and never half there. Ivy is replaced by a function here."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scripts.relock_jars import ROOTS, coordinate_of

from penstock.errors import DevelopmentError
from penstock.supply import jars
from penstock.supply.jars import Coordinate, LockedJar

CONTENT = {"one": b"first jar", "two": b"second jar", "three": b"third jar"}


def locked_jar(name: str) -> LockedJar:
    return LockedJar("org.example", name, "1.0", hashlib.sha256(CONTENT[name]).hexdigest(), len(CONTENT[name]))


class FakeIvy:
    """Writes what it was told to serve, and counts how often it was asked for each artifact."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, wanted: Sequence[Coordinate], folder: Path, *, transitive: bool = False) -> list[Path]:
        for coordinate in wanted:
            with self._lock:
                self.asked.append(coordinate.artifact)
            path = jars.place(folder, coordinate)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.content[coordinate.artifact])
        return []


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, bytes]], FakeIvy]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "locked", lambda: {"example": tuple(locked_jar(name) for name in CONTENT)})

    def install(content: dict[str, bytes]) -> FakeIvy:
        fake = FakeIvy(content)
        monkeypatch.setattr(jars, "retrieve", fake)
        return fake

    return install


def test_a_set_is_brought_once(serve: Callable[[dict[str, bytes]], FakeIvy]) -> None:
    fake = serve(CONTENT)
    assert not jars.is_present("example")
    paths = jars.jar_set("example")
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert sorted(fake.asked) == sorted(CONTENT)
    assert jars.is_present("example")
    assert jars.jar_set("example") == paths
    assert len(fake.asked) == len(CONTENT)


def test_a_wrong_checksum_leaves_no_trace(serve: Callable[[dict[str, bytes]], FakeIvy]) -> None:
    serve({**CONTENT, "two": b"second jbr"})  # the same length: only the checksum tells
    with pytest.raises(DevelopmentError, match=r"org\.example:two:1\.0 came with checksum") as caught:
        jars.jar_set("example")
    assert "cache is unchanged" in caught.value.safe
    assert not jars.jar_folder("example").exists()
    assert [path.name for path in jars.jar_folder("example").parent.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("damage", ["delete", "cut", "stamp"])
def test_a_damaged_set_is_brought_again(serve: Callable[[dict[str, bytes]], FakeIvy], damage: str) -> None:
    fake = serve(CONTENT)
    victim = jars.jar_set("example")[1]
    if damage == "delete":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(b"sec")
    else:
        (victim.parent / "verified").unlink()
    assert not jars.is_present("example")
    assert [path.read_bytes() for path in jars.jar_set("example")] == list(CONTENT.values())
    assert len(fake.asked) == 2 * len(CONTENT)


def test_two_at_once_download_once(serve: Callable[[dict[str, bytes]], FakeIvy]) -> None:
    fake = serve(CONTENT)
    answers: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: answers.append(jars.jar_set("example"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert len(fake.asked) == len(CONTENT)


def test_another_lock_is_another_folder(
    serve: Callable[[dict[str, bytes]], FakeIvy], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(CONTENT)
    before = jars.jar_folder("example")
    monkeypatch.setattr(jars, "locked", lambda: {"example": (locked_jar("one"),)})
    assert jars.jar_folder("example") != before


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(DevelopmentError, match="no jar set named 'spark'") as caught:
        jars.jar_set("spark")
    assert "spark-kafka" in caught.value.to_do


def test_the_shipped_lock_holds_its_roots_and_every_checksum() -> None:
    shipped = jars.locked()
    assert set(shipped) == set(ROOTS)
    for name, root in ROOTS.items():
        found = [jars.Coordinate(jar.group, jar.artifact, jar.version) for jar in shipped[name]]
        assert set(root.jars) <= set(found)
        assert len({jar.filename for jar in found}) == len(found), "two jars would share a file name"
        assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in shipped[name])
    assert len(shipped["spark-kafka"]) == 4
    assert len(shipped["kafka-broker"]) == 46


def test_ivy_is_asked_for_exactly_what_is_named() -> None:
    text = jars._module([Coordinate("a.b", "c<d", "1")], transitive=False)
    assert '<dependency org="a.b" name="c&lt;d" rev="1" transitive="false" conf="default-&gt;*">' in text.replace(
        'conf="default->*"', 'conf="default-&gt;*"'
    )


def test_what_ivy_said_is_in_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Sequence[str | Path]] = []

    def refuse(command: Sequence[str | Path], folder: Path) -> tuple[int, str]:
        calls.append(command)
        return 1, "first line\n\t---------\nSERVER DOWN\n"

    monkeypatch.setattr(jars, "_run", refuse)
    monkeypatch.setenv(jars.SETTINGS, "/somewhere/ivysettings.xml")
    with pytest.raises(DevelopmentError, match=r"Could not download g:a:1.*\n  first line\n  SERVER DOWN\n") as caught:
        jars.retrieve([Coordinate("g", "a", "1")], tmp_path)
    assert jars.SETTINGS in caught.value.to_do
    assert len(calls) == 3, "a hiccup of the network deserves another try"
    assert "/somewhere/ivysettings.xml" in calls[0]


def test_a_path_tells_its_coordinate(tmp_path: Path) -> None:
    wanted = Coordinate("com.github.luben", "zstd-jni", "1.5.6-10")
    assert coordinate_of(jars.place(tmp_path, wanted)) == wanted
