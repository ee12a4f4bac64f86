"""The power cut of the fault tests: it loses what was not synced, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.storage import durable
from penstock.storage.local import LocalStorage
from tests.support.power_record import Machine, RealDisk, Recorder

SEEDS = range(40)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A disk whose syncs are recorded in this process."""
    machine = Machine(tmp_path / "disk")
    monkeypatch.setattr(os, "fsync", Recorder(machine.root).fsync)
    return machine


def write(path: Path, text: str, *, synced: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if synced:
        durable.sync(path)


def texts(machine: Machine) -> dict[str, str]:
    files = (path for path in machine.root.rglob("*") if path.is_file())
    return {path.relative_to(machine.root).as_posix(): path.read_text() for path in files}


def outcomes(folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]) -> list[dict[str, str]]:
    """What is there after each seed's cut. `act` is what happens before it, on a new disk each time."""
    found = []
    for seed in SEEDS:
        machine = Machine(folder / f"disk-{seed}")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)  # recorded, and not carried out: no test here needs that
            patch.setattr(os, "fsync", Recorder(machine.root).fsync)
            act(machine.root)
        machine.cut(seed)
        found.append(texts(machine))
    return found


def test_what_was_synced_with_its_name_survives_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(root: Path) -> None:
        LocalStorage(root / "ledger").create("epochs/0.json", b"decided")

    assert outcomes(tmp_path, monkeypatch, act) == [{"ledger/epochs/0.json": "decided"}] * len(SEEDS)


def test_a_file_that_was_never_synced_is_lost_emptied_shortened_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcomes(tmp_path, monkeypatch, lambda root: write(root / "state", "0123456789"))
    assert found[0] == {}
    assert found[1] == {"state": ""}
    contents = {one.get("state") for one in found}
    assert {None, "", "0123456789", "\0" * 10} <= contents
    assert any(text and text != "0123456789" and "0123456789".startswith(text) for text in contents)


def test_a_synced_name_without_synced_bytes_is_an_empty_file(machine: Machine) -> None:
    write(machine.root / "offsets", "v1")
    durable.sync(machine.root)
    cut = machine.cut(0)
    assert texts(machine) == {"offsets": ""}
    assert cut.damaged == ["offsets"]


def test_synced_bytes_without_a_synced_name_are_lost(machine: Machine) -> None:
    write(machine.root / "a" / "staged", "rows", synced=True)
    durable.sync(machine.root / "a")  # but not the name of `a` itself
    cut = machine.cut(0)
    assert texts(machine) == {}
    assert cut.lost == ["a/staged"]


def test_a_folder_that_survives_has_its_synced_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(root: Path) -> None:
        write(root / "a" / "staged", "rows", synced=True)
        durable.sync(root / "a")

    for seed, found in enumerate(outcomes(tmp_path, monkeypatch, act)):
        survived = (tmp_path / f"disk-{seed}" / "a").exists()
        assert found == ({"a/staged": "rows"} if survived else {})


def test_what_was_appended_since_the_last_sync_is_cut_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(root: Path) -> None:
        write(root / "log", "synced,", synced=True)
        durable.sync(root)
        with (root / "log").open("a") as file:
            file.write("appended")

    found = {one["log"] for one in outcomes(tmp_path, monkeypatch, act)}
    assert {"synced,", "synced,appended"} <= found
    assert len(found) > 2
    assert all("synced,appended".startswith(text) and text.startswith("synced,") for text in found)


def test_a_rename_is_done_or_undone_and_never_loses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(root: Path) -> None:
        write(root / "staging" / "part", "rows", synced=True)
        for folder in (root / "staging", root):
            durable.sync(folder)
        (root / "staging" / "part").rename(root / "part")

    found = outcomes(tmp_path, monkeypatch, act)
    assert found[0] == {"staging/part": "rows"}
    assert found[1] == {"part": "rows"}
    assert {"staging/part": "rows", "part": "rows"} in found
    assert {} not in found


def test_a_file_moved_into_a_folder_that_is_lost_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(root: Path) -> None:
        write(root / "old" / "part", "rows", synced=True)
        for folder in (root / "old", root):
            durable.sync(folder)
        (root / "new").mkdir()
        (root / "old" / "part").rename(root / "new" / "part")
        (root / "old").rmdir()

    found = outcomes(tmp_path, monkeypatch, act)
    assert {"old/part": "rows"} in found
    assert {"new/part": "rows"} in found
    assert {} not in found


def test_a_file_that_was_replaced_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(root: Path) -> None:
        write(root / "note", "old", synced=True)
        durable.sync(root)
        write(root / "aside", "new", synced=True)
        (root / "aside").replace(root / "note")

    assert {one["note"] for one in outcomes(tmp_path, monkeypatch, act)} == {"old", "new"}


def test_a_removal_that_was_not_synced_may_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(root: Path) -> None:
        write(root / "log", "rows", synced=True)
        durable.sync(root)
        (root / "log").unlink()

    found = outcomes(tmp_path, monkeypatch, act)
    assert found[0] == {"log": "rows"}
    assert found[1] == {}


def test_the_same_seed_cuts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(root: Path) -> None:
        for number in range(20):
            write(root / "state" / f"{number}.delta", "changes")

    again = [outcomes(tmp_path / name, monkeypatch, act) for name in ("once", "twice")]
    assert again[0] == again[1]
    assert len({tuple(sorted(one.items())) for one in again[0]}) > 10


PROGRAM = """
import os, pathlib, sys
from penstock.storage.local import LocalStorage
root = pathlib.Path(sys.argv[1])
spark = root / "spark"
spark.mkdir()
(spark / "before").write_text("state")
LocalStorage(spark).sync()
(spark / "after").write_text("state")
LocalStorage(root / "ledger").create("decision", b"decided")
if os.fork():
    os.wait()
else:
    LocalStorage(root / "out").create("by a child", b"rows")
    os._exit(0)
"""


@pytest.mark.parametrize("apart", [False, True], ids=["as one", "file by file"])
def test_processes_record_their_syncs_by_themselves(tmp_path: Path, apart: bool) -> None:
    """Those of the file system, those of a forked child, and with a planted bug none of the ledger's."""
    for forgets, kept in (("", {"ledger/decision"}), ("/ledger", set[str]())):
        machine = Machine(tmp_path / f"disk{forgets.strip('/')}", forgets=forgets, apart=apart)
        environment = {**os.environ, **machine.environment}
        subprocess.run([sys.executable, "-c", PROGRAM, str(machine.root)], env=environment, check=True)
        before = texts(machine)
        assert len(before) == 4
        machine.cut(0)
        assert texts(machine).keys() == {"spark/before", "out/by a child"} | kept


def test_a_real_file_system_forgets_too(tmp_path: Path) -> None:
    if not RealDisk.works(tmp_path / "probe"):
        pytest.skip("this user may not mount a file system")
    disk = RealDisk(tmp_path / "real", 20)
    try:
        LocalStorage(disk.root / "ledger").create("decision", b"decided")
        write(disk.root / "state", "never synced")
        cut = disk.cut(0)
        assert (disk.root / "ledger" / "decision").read_text() == "decided"
        assert cut.lost + cut.damaged == ["state"]
    finally:
        disk.close()
