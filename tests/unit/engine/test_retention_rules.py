"""Deleting a checkpoint: when not, what not, and that a crash in the middle leaves all of it or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.layout import unseal
from penstock.checkpoint.ledger import Ledger
from penstock.engine.retention import RETAINED_BATCHES, JobFolder, retain_batches
from penstock.errors import LedgerError
from penstock.storage.local import LocalStorage, LocalTree, tree_of


class Died(Exception):
    """The process is gone at this step."""


class Folder:
    """A job's folder with two queries that have run, twice and once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = LocalStorage(root)
        self.job = JobFolder(self.storage, tree_of(self.storage))
        for uid, runs in (("copy", 2), ("count", 1)):
            self.register(uid, runs)
            for name in ("metadata", "offsets/0", "commits/0", "state/0/0/1.delta"):
                self.write(f"{uid}/spark/{name}")
            self.write(f"{uid}/ledger/epochs/0000000000.g00000001.json")
            self.write(f"{uid}/ledger/claims/00000001.json")
            self.write(f"{uid}/inflight/id/sink/drained/0000000000.json")
            self.write(f"{uid}/schemas/0000000007-5f0c2a9b.json")
            self.write(f"queries/{uid}.json")
        self.write("global/0000000001.json")
        self.generations = {"copy": 2, "count": 1}

    def write(self, name: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(name)

    def register(self, uid: str, times: int = 1) -> None:
        ledger = Ledger(LocalStorage(self.root / uid / "ledger"))
        for _ in range(times):
            ledger.register({})

    def files(self) -> set[str]:
        """All that counts: a file that was being written aside does not."""
        found = (path for path in self.root.rglob("*") if not path.is_dir() and path.suffix != ".tmp")
        return {str(path.relative_to(self.root)) for path in found}

    @property
    def numbers(self) -> set[str]:
        return {name for name in self.files() if "/generations/" in name}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "job")


def test_all_is_deleted_but_the_numbers_of_the_runs(folder: Folder) -> None:
    assert folder.job.delete(folder.generations) == ""
    assert folder.files() == folder.numbers
    assert len(folder.numbers) == 3
    assert sorted(path.name for path in folder.root.iterdir()) == ["copy", "count"]
    folder.register("copy")
    assert Ledger(LocalStorage(folder.root / "copy" / "ledger")).newest_generation() == 3, "fences what ran before"


def test_what_is_not_ours_stays(folder: Folder) -> None:
    others = [
        "savepoints/one/copy/spark/metadata",
        "notes.txt",
        "copy/notes.txt",
        "copy/ledger/mine.json",
        "global/readme.md",
        "queries/readme.md",
        "other/spark/metadata",
    ]
    for name in others:
        folder.write(name)
    assert folder.job.delete(folder.generations) == ""
    assert folder.files() == {*others, *folder.numbers}


def test_a_hard_linked_copy_survives(folder: Folder, tmp_path: Path) -> None:
    """What a savepoint is made of."""
    copies = [folder.root / "savepoints" / "1.delta", tmp_path / "elsewhere" / "1.delta"]
    for copy in copies:
        copy.parent.mkdir(parents=True)
        os.link(folder.root / "copy/spark/state/0/0/1.delta", copy)
    assert folder.job.delete(folder.generations) == ""
    assert [copy.read_text() for copy in copies] == ["copy/spark/state/0/0/1.delta"] * 2


def test_links_inside_are_not_followed(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("here")
    (folder.root / "copy/spark/state/link").symlink_to(outside)
    assert folder.job.delete(folder.generations) == ""
    assert (outside / "precious").exists()
    assert not (folder.root / "copy/spark").exists()


@pytest.mark.parametrize("where", ["copy", "copy/spark"])
def test_a_link_in_place_of_a_folder_keeps_all(folder: Folder, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    (folder.root / where).rename(outside)
    (folder.root / where).symlink_to(outside)
    before = {str(path) for path in outside.rglob("*")}, folder.files()
    assert "links are not followed" in folder.job.delete(folder.generations)
    assert ({str(path) for path in outside.rglob("*")}, folder.files()) == before


def test_kept_while_a_newer_run_is_registered(folder: Folder) -> None:
    folder.register("count")
    before = folder.files()
    assert folder.job.delete(folder.generations) == "generation 2 of query count has taken over"
    assert folder.files() == before


def test_kept_when_a_newer_run_registers_just_then(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first look, before the mark is written: the second look finds it, and the mark is taken back."""
    create = folder.storage.create

    def register_first(name: str, data: bytes) -> None:
        folder.register("copy")
        create(name, data)

    monkeypatch.setattr(folder.storage, "create", register_first)
    assert folder.job.delete(folder.generations) == "generation 3 of query copy has taken over"
    folder.job.refuse_marked()
    assert len(folder.files() - folder.numbers) == 19


def test_a_run_that_registers_during_the_deletion_begins_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = LocalTree.delete

    def look_like_a_start(trees: LocalTree, name: str) -> None:
        with pytest.raises(LedgerError, match="is being deleted"):
            folder.job.refuse_marked()
        delete(trees, name)

    monkeypatch.setattr(LocalTree, "delete", look_like_a_start)
    assert folder.job.delete(folder.generations) == ""
    folder.job.refuse_marked()


def test_a_deletion_that_stood_still_stops_at_a_newer_run(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has finished it meanwhile and begun anew; nothing of that may be deleted."""
    delete, steps = LocalTree.delete, []

    def stand_still(trees: LocalTree, name: str) -> None:
        steps.append(name)
        delete(trees, name)
        if len(steps) == 1:
            JobFolder(folder.storage, trees).finish_deletion(folder.generations)
            for uid in folder.generations:
                folder.register(uid)
            folder.write("copy/spark/metadata")
            folder.write("queries/copy.json")

    monkeypatch.setattr(LocalTree, "delete", stand_still)
    assert folder.job.delete(folder.generations).endswith("has taken over")
    assert {"copy/spark/metadata", "queries/copy.json"} <= folder.files()


@pytest.mark.parametrize("name", ["inflight/id/sink/backlog/0000000003.json", "inflight/sink/backlog/0000000003.json"])
def test_kept_while_rows_wait_in_the_log(folder: Folder, name: str) -> None:
    folder.write(f"copy/{name}")
    before = folder.files()
    assert "holds rows that are not delivered yet" in folder.job.delete(folder.generations)
    assert folder.files() == before


def test_kept_when_a_query_has_not_run(folder: Folder) -> None:
    assert folder.job.delete({"copy": 2, "count": 0}) == "query count has not run"


def crash_points(folder: Folder) -> int:
    """How many single steps a deletion has."""
    steps = CountingSteps(folder, die_at=None)
    steps.run()
    return steps.done


class CountingSteps:
    """Lets a deletion die before its n-th change of the disk."""

    def __init__(self, folder: Folder, die_at: int | None) -> None:
        self._folder, self._die_at, self.done = folder, die_at, 0

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for where, name in ((LocalStorage, "create"), (LocalStorage, "delete"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(where, name, self._counted(getattr(where, name)))
            self._folder.job.delete(self._folder.generations)

    def _counted(self, real: Any) -> Any:
        def step(*arguments: Any, **more: Any) -> Any:
            if self._die_at is not None and self.done >= self._die_at:
                raise Died
            self.done += 1
            return real(*arguments, **more)

        return step


def test_a_crash_leaves_a_whole_checkpoint_or_one_that_is_recognisably_gone(tmp_path: Path) -> None:
    steps = crash_points(Folder(tmp_path / "count"))
    assert steps > 20
    whole = 0
    for die_at in range(steps):
        folder = Folder(tmp_path / f"job-{die_at}")
        before = folder.files()
        with pytest.raises(Died):
            CountingSteps(folder, die_at).run()
        again = JobFolder(folder.storage, tree_of(folder.storage))
        if again.finish_deletion(["copy", "count"]):
            assert folder.files() == folder.numbers
        elif before <= folder.files():
            whole += 1
        else:
            assert folder.files() == folder.numbers, f"died before step {die_at}"
        again.refuse_marked()
    assert 1 <= whole < 5, "only before the mark is written is it still whole"


def test_a_start_without_marks_deletes_nothing(folder: Folder) -> None:
    before = folder.files()
    assert folder.job.finish_deletion(["copy", "count"]) is False
    assert folder.files() == before


class Session:
    """The part of a Spark session that is asked here."""

    def __init__(self, **given: str) -> None:
        self.values = dict(given)
        self.conf = self

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        del self.values[key]


@pytest.mark.parametrize(("num_retained", "kept"), [(1, "2"), (7, "7")])
def test_spark_keeps_as_many_epochs(num_retained: int, kept: str) -> None:
    session: Any = Session()
    with retain_batches(session, num_retained):
        assert session.values == {RETAINED_BATCHES: kept}
    assert session.values == {}


def test_what_the_user_has_set_stays() -> None:
    session: Any = Session(**{RETAINED_BATCHES: "100"})
    with retain_batches(session, 1):
        assert session.values == {RETAINED_BATCHES: "100"}
    assert session.values == {RETAINED_BATCHES: "100"}


def test_a_newer_run_keeps_it_without_a_mark_that_would_hold_that_run_up(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.register("count")
    monkeypatch.setattr(folder.storage, "create", lambda name, data: pytest.fail(f"{name} was written"))
    assert folder.job.delete(folder.generations) == "generation 2 of query count has taken over"


def test_rows_that_come_into_the_log_just_then_keep_all(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first look, before the mark is written. Only the second look can find them: nothing is deleted yet."""
    create = folder.storage.create

    def log_rows_first(name: str, data: bytes) -> None:
        folder.write("copy/inflight/id/sink/backlog/0000000003.json")
        create(name, data)

    before = folder.files() | {"copy/inflight/id/sink/backlog/0000000003.json"}
    monkeypatch.setattr(folder.storage, "create", log_rows_first)
    reason = folder.job.delete(folder.generations)
    assert reason == "copy/inflight/id/sink/backlog holds rows that are not delivered yet"
    assert folder.files() == before
    folder.job.refuse_marked()


def test_every_history_goes(folder: Folder) -> None:
    """Those that restores began beside the first one, whatever their names sort like."""
    for name in ("copy/spark-0123456789ab/metadata", "count/spark-ba9876543210/metadata"):
        folder.write(name)
    folder.write("restores/0000000001.json")
    folder.write("copy/ledger/identity.json")
    assert folder.job.delete(folder.generations) == ""
    assert folder.files() == folder.numbers


def test_a_query_of_the_program_that_no_record_names_goes_too(folder: Folder) -> None:
    (folder.root / "queries" / "count.json").unlink()
    assert folder.job.delete(folder.generations) == ""
    assert folder.files() == folder.numbers


def test_a_query_that_lost_its_numbers_is_deleted_like_the_others(folder: Folder) -> None:
    for path in (folder.root / "count/ledger/generations").iterdir():
        path.unlink()
    assert folder.job.delete(folder.generations) == ""
    assert folder.files() == folder.numbers


def test_a_start_that_finishes_a_deletion_says_so(folder: Folder) -> None:
    folder.write("deleting/0123456789ab.json")
    assert folder.job.finish_deletion(["copy", "count"]) is True
    assert folder.files() == folder.numbers


def test_rows_are_looked_for_where_they_lie_and_no_deeper(folder: Folder) -> None:
    folder.write("copy/inflight/id/sink/logs/backlog/0000000003.json")
    assert folder.job.delete(folder.generations) == ""


def test_which_run_took_over_is_named_when_it_comes_late(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = LocalTree.delete

    def register_later(trees: LocalTree, name: str) -> None:
        delete(trees, name)
        if name == "copy/spark":
            folder.register("copy")

    monkeypatch.setattr(LocalTree, "delete", register_later)
    assert folder.job.delete(folder.generations) == "generation 3 of query copy has taken over"


def test_a_mark_tells_who_deletes_and_when(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    create = folder.storage.create

    def look(name: str, data: bytes) -> None:
        marks.append(unseal("deleting", data, name))
        create(name, data)

    monkeypatch.setattr(folder.storage, "create", look)
    folder.job.delete(folder.generations)
    assert [mark["generations"] for mark in marks] == [folder.generations]
    assert marks[0]["time"] > 1_700_000_000


def test_where_spark_is_gone_there_is_nothing_to_put_back() -> None:
    session: Any = Session()
    with retain_batches(session, 7):
        session.values.clear()
    assert session.values == {}


def test_after_a_cancel_what_is_kept_is_said(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = folder.files()
    folder.job.delete_cancelled(folder.generations, ["copy", "count"])
    assert caplog.messages == [
        f"the checkpoint in {folder.storage.location} is kept: an epoch of copy, count has not ended"
    ]
    assert folder.files() == before

    def refuse(generations: Any) -> str:
        raise LedgerError("The disk is away.")

    with monkeypatch.context() as patch:
        patch.setattr(folder.job, "delete", refuse)
        folder.job.delete_cancelled(folder.generations, [])
    assert "could not be deleted, which the next start tries again: The disk is away." in caplog.messages[1]
    folder.job.delete_cancelled(folder.generations, [])
    assert len(caplog.messages) == 2
    assert folder.files() == folder.numbers
