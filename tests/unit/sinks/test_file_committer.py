"""The file sink's table of proofs, row by row, in a folder in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed, StorageFull
from penstock.sinks.files.commit import FileCommitter, FileWriter, Receipts, label, names_of
from penstock.storage.local import folder_warnings
from tests.support.memory_files import MemoryFiles

PRIVATE = "_penstock/job/out"
STAGED, RECEIPTS = f"{PRIVATE}/staged", f"{PRIVATE}/receipts"
LATE = Deadline(0)


def soon() -> Deadline:
    return Deadline(60)


def committer(files: MemoryFiles, generation: int = 3) -> FileCommitter:
    return FileCommitter(files, SinkScope("job", "out", generation))


def prepare(
    files: MemoryFiles, writer: int, *, epoch: int = 7, generation: int = 3, content: bytes = b"rows"
) -> Committable:
    scope = WriterScope(SinkScope("job", "out", generation), epoch, 1, writer, 0, {})
    staged, final = names_of(scope, ".parquet")
    files.contents[staged] = content
    return Committable("out", writer, 5, 0, {"staged": staged, "final": final, "bytes": len(content)})


def receipts(files: MemoryFiles) -> list[list[str]]:
    return [files.contents[f"{RECEIPTS}/{name}"].decode().split("\n")[:-1] for name in files.file_names(RECEIPTS)]


def staged_of(*ones: Committable) -> list[str]:
    return [one.payload["staged"] for one in ones]


def visible(files: MemoryFiles) -> list[str]:
    return files.file_names("") + sorted(name for name in files.contents if "/" not in name)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


# The disk


@pytest.mark.parametrize(("blocks", "free", "refused"), [(0, 0, False), (1000, 0, True), (1 << 30, 1 << 29, False)])
def test_a_disk_that_does_not_say_how_large_it_is_is_not_taken_for_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, refused: bool
) -> None:
    """As FUSE file systems do that know of no blocks."""
    about = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: about)
    with pytest.raises(StorageFull) if refused else nullcontext():
        assert folder_warnings(tmp_path / "out", "a folder of files") == []


# Names


def test_names_tell_run_epoch_and_writer_and_are_never_given_twice() -> None:
    scope = WriterScope(SinkScope("a job", "out", 3), 7, 2, 4, 1, {})
    staged, final = names_of(scope, ".parquet")
    token = final.removeprefix("part-out-e0000000007-w00004-").removesuffix(".parquet")
    assert len(token) == 12
    assert staged == f"_penstock/a%20job/out/staged/g00000003-e0000000007-a2-p00004-t1-{token}.parquet"
    assert names_of(scope, ".parquet")[1] != final


@pytest.mark.parametrize(
    ("name", "expected"), [("plain", "plain"), (".hidden", "%2Ehidden"), ("a/b.c", "a%2Fb%2Ec"), ("x" * 80, "x" * 80)]
)
def test_a_label_is_part_of_a_file_name(name: str, expected: str) -> None:
    assert label(name) == expected


def test_a_long_label_stays_unambiguous() -> None:
    one, other = label("x" * 81 + "1"), label("x" * 81 + "2")
    assert len(one) == len(other) == 77
    assert one != other
    assert one.startswith("x" * 60 + "-")


# The writer


class Encoder:
    def __init__(self, error: OSError | None = None) -> None:
        self.did: list[Any] = []
        self._error = error

    def write(self, batch: Any) -> None:
        if self._error:
            raise self._error
        self.did.append(batch)

    def close(self) -> None:
        if self._error:
            raise self._error
        self.did.append("closed")


def test_a_writer_hands_back_what_a_commit_needs(files: MemoryFiles) -> None:
    file, encoder = files.stage("hidden"), Encoder()
    writer = FileWriter("hidden", "final", file, encoder)  # type: ignore[arg-type]
    writer.write("batch")
    file.stream.write(b"12345")
    assert writer.pre_commit() == {"staged": "hidden", "final": "final", "bytes": 5}
    assert encoder.did == ["batch", "closed"]


def test_a_writer_whose_file_was_removed_has_nothing_prepared(files: MemoryFiles) -> None:
    writer = FileWriter("hidden", "final", files.stage("hidden"), Encoder())  # type: ignore[arg-type]
    files.contents.clear()
    with pytest.raises(PreCommitFailed, match="hidden was removed"):
        writer.pre_commit()


def test_a_full_disk_is_named_and_other_errors_pass(files: MemoryFiles) -> None:
    full = FileWriter("hidden", "f", files.stage("hidden"), Encoder(OSError(errno.ENOSPC, "No space")))  # type: ignore[arg-type]
    for step in (lambda: full.write(None), full.pre_commit):
        with pytest.raises(StorageFull, match="where hidden is") as refused:
            step()
        assert refused.value.safe == "nothing of this epoch is visible"
    full.abort()
    assert files.contents == {}


# Sealing


def test_a_committer_makes_its_folders(files: MemoryFiles) -> None:
    committer(files)
    assert files.folders == [STAGED, RECEIPTS]


def test_a_disk_that_is_full_at_the_start_is_named(files: MemoryFiles) -> None:
    def full(what: str, name: str) -> None:
        raise OSError(errno.ENOSPC, "No space")

    files.before = full
    with pytest.raises(StorageFull, match=STAGED) as refused:
        committer(files)
    assert refused.value.safe == "nothing was started"


def test_what_is_there_as_it_was_written_is_sealed(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    assert committer(files).seal(ones, soon()) == ones


@pytest.mark.parametrize("harm", [b"row", b"rows!", None])
def test_what_is_gone_or_of_another_size_is_not_sealed(files: MemoryFiles, harm: bytes | None) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    files.contents.pop(staged_of(ones[1])[0])
    if harm is not None:
        files.contents[staged_of(ones[1])[0]] = harm
    with pytest.raises(PreCommitFailed, match="is gone" if harm is None else "not as it was written"):
        committer(files).seal(ones, soon())


# The table


def test_prepared_files_are_renamed_after_their_receipt_and_synced(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    assert committer(files).commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    steps = [(step[0], *step[2:]) if step[0] == "write" else step for step in files.did]
    assert steps == [
        ("write", "".join(f"{name}\n" for name in staged_of(*ones))),
        *(("rename", one.payload["staged"], one.payload["final"]) for one in ones),
        ("sync", ""),
        ("sync", STAGED),
    ]
    [receipt] = files.file_names(RECEIPTS)
    assert receipt.startswith("e0000000007-")
    assert len(receipt) == len("e0000000007-") + 12


def test_a_commit_that_is_asked_again_is_proven_and_writes_nothing(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    committer(files).commit(7, ones, soon())
    files.did.clear()
    again = committer(files, 4).commit(7, ones, soon())
    assert again == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED}
    assert {step[0] for step in files.did} == {"sync"}, "whoever renamed them may not have lived to sync their names"


def test_a_commit_cut_short_is_finished_and_only_the_rest_gets_a_receipt(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    committer(files).commit(7, ones[:1], soon())
    assert committer(files).commit(7, ones, soon()) == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.COMMITTED}
    assert sorted(receipts(files)) == sorted([staged_of(ones[0]), staged_of(ones[1])])


def test_a_file_that_a_reader_moved_away_was_committed(files: MemoryFiles) -> None:
    one = prepare(files, 0)
    committer(files).commit(7, [one], soon())
    del files.contents[one.payload["final"]]
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    files.contents[one.payload["final"]] = b"changed since"
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}


@pytest.mark.parametrize(
    ("final", "outcome"),
    [
        (b"rows", Outcome.ALREADY_COMMITTED),
        (b"row", Outcome.UNKNOWN),
        (b"more rows", Outcome.UNKNOWN),
        (None, Outcome.LOST),
    ],
)
def test_without_a_receipt_the_final_file_tells(files: MemoryFiles, final: bytes | None, outcome: Outcome) -> None:
    one = prepare(files, 0)
    files.contents.clear()
    if final is not None:
        files.contents[one.payload["final"]] = final
    assert committer(files).commit(7, [one], soon()) == {0: outcome}


def test_a_receipt_cut_short_by_a_crash_proves_only_its_whole_names(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    whole, cut = staged_of(*ones)
    files.contents.clear()
    files.contents[f"{RECEIPTS}/e0000000007-abcdef"] = f"{whole}\n{cut[:-3]}".encode()
    files.contents[f"{RECEIPTS}/notes.txt"] = f"{cut}\n".encode()
    assert committer(files).commit(7, ones, soon()) == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.LOST}


def test_a_file_of_ours_under_a_name_that_is_taken_is_for_a_person(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    files.contents[ones[0].payload["final"]] = b"theirs"
    assert committer(files).commit(7, ones, soon()) == {0: Outcome.UNKNOWN, 1: Outcome.COMMITTED}
    assert files.contents[ones[0].payload["final"]] == b"theirs"
    assert staged_of(ones[0])[0] in files.contents, "it stays prepared"


def test_a_rename_that_failed_because_another_driver_was_first_is_proven(files: MemoryFiles) -> None:
    one = prepare(files, 0)

    def other_was_first(what: str, name: str) -> None:
        if what == "rename":
            files.contents[one.payload["final"]] = files.contents.pop(name)
            raise PermissionError("stale handle")

    files.before = other_was_first
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}


def test_a_full_disk_while_renaming_is_no_outcome(files: MemoryFiles) -> None:
    one = prepare(files, 0)

    def full(what: str, name: str) -> None:
        if what == "rename":
            raise OSError(errno.EDQUOT, "Quota exceeded")

    files.before = full
    with pytest.raises(StorageFull, match=STAGED) as refused:
        committer_of = committer(files)
        committer_of.commit(7, [one], soon())
    assert refused.value.safe == "the epoch is decided and its files are kept until they can be renamed"


def test_after_the_deadline_nothing_is_renamed(files: MemoryFiles) -> None:
    one = prepare(files, 0)
    assert committer(files).commit(7, [one], LATE) == {0: Outcome.UNKNOWN}
    assert staged_of(one)[0] in files.contents


def test_only_the_receipts_of_the_last_epochs_are_kept(files: MemoryFiles) -> None:
    for epoch in (7, 8, 24):
        committer(files).commit(epoch, [prepare(files, 0, epoch=epoch)], soon())
    assert [name[:11] for name in files.file_names(RECEIPTS)] == ["e0000000008", "e0000000024"]


# Aborting and sweeping


def test_what_is_aborted_is_struck_from_its_receipt_before_it_goes(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    keep, gone = staged_of(*ones)
    files.contents[f"{RECEIPTS}/e0000000007-aa"] = f"{keep}\n{gone}\n".encode()
    files.contents[f"{RECEIPTS}/e0000000006-bb"] = b"another\n"
    committer(files).abort([ones[1]], soon())
    assert gone not in files.contents
    assert receipts(files) == [["another"], [keep]]
    kinds = [step[0] if step[0] == "write" else step[:2] for step in files.did]
    assert kinds[:4] == ["write", ("remove", f"{RECEIPTS}/e0000000007-aa"), ("sync", RECEIPTS), ("remove", gone)]
    assert committer(files).commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.LOST}


def test_a_receipt_with_nothing_left_goes(files: MemoryFiles) -> None:
    one = prepare(files, 0)
    files.contents[f"{RECEIPTS}/e0000000007-aa"] = f"{staged_of(one)[0]}\n".encode()
    committer(files).abort([one], soon())
    assert files.contents == {}


def test_a_receipt_written_while_a_file_was_being_removed_is_struck_too(files: MemoryFiles) -> None:
    """Another driver's, of the last instant: the file was removed, so it was never renamed."""
    one = prepare(files, 0)
    [name] = staged_of(one)

    def receipt_first(what: str, removed: str) -> None:
        if what == "remove" and removed == name:
            files.contents[f"{RECEIPTS}/e0000000007-aa"] = f"{name}\n".encode()

    files.before = receipt_first
    committer(files).abort([one], soon())
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.LOST}


def test_aborting_what_is_gone_changes_nothing(files: MemoryFiles) -> None:
    one = prepare(files, 0)
    committer(files).commit(7, [one], soon())
    files.did.clear()
    committer(files).abort([one], soon())
    assert files.did == []
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(files: MemoryFiles) -> None:
    kept, own, older, newer = (prepare(files, 0, generation=number) for number in (3, 3, 2, 4))
    files.contents[f"{STAGED}/readme.txt"] = b"theirs"
    assert committer(files, 3).abort_dangling([kept], soon()) == 2
    left = set(files.contents)
    assert left == {*staged_of(kept, newer), f"{STAGED}/readme.txt"}
    assert not {*staged_of(own, older)} & left


def test_leftovers_are_told_as_they_are(files: MemoryFiles) -> None:
    own, newer = prepare(files, 4, content=b"12345"), prepare(files, 5, generation=4)
    files.contents[f"{STAGED}/readme.txt"] = b"theirs"
    [name] = staged_of(own)
    found: Sequence[Leftover] = committer(files, 3).leftovers(soon())
    assert found == [Leftover(name, 3, 7, 4, payload={"staged": name}, details={"bytes": 5})]
    assert len(committer(files, 4).leftovers(soon())) == 2
    assert newer.payload["staged"] in files.contents


def test_a_stranger_among_the_staged_files_hides_no_leftover(files: MemoryFiles) -> None:
    files.contents[f"{STAGED}/a stranger"] = b"theirs"
    one = prepare(files, 0)
    assert [found.name for found in committer(files).leftovers(soon())] == staged_of(one)


def test_a_receipt_that_is_no_text_proves_nothing(files: MemoryFiles) -> None:
    one = prepare(files, 0)
    files.contents.clear()
    files.contents[f"{RECEIPTS}/e0000000007-aa"] = b"\xff\xfe\n"
    assert committer(files).commit(7, [one], soon()) == {0: Outcome.LOST}


def test_aborting_nothing_reads_no_receipt(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    one = prepare(files, 0)
    committer(files).commit(7, [one], soon())
    monkeypatch.setattr(files, "read", lambda name: pytest.fail(f"{name} was read"))
    committer(files).abort([one], soon())


def test_a_name_just_too_long_is_shortened() -> None:
    assert label("x" * 81).startswith("x" * 60 + "-")


def test_what_tasks_left_is_made_durable_before_the_decision(files: MemoryFiles) -> None:
    ones = [prepare(files, 0), prepare(files, 1)]
    committer(files).seal(ones, soon())
    assert files.secured == staged_of(*ones)


# Receipts


@pytest.mark.parametrize("kind", ["", "begun", "done"])
def test_names_are_struck_off_receipts_of_one_kind(kind: str) -> None:
    """A sink that keeps both needs the receipt of what it has done though another attempt at it is struck off."""
    files: dict[str, bytes] = {}
    receipts = Receipts(
        "receipts",
        files.__setitem__,
        files.__getitem__,
        lambda folder: [name.removeprefix(f"{folder}/") for name in files],
        files.pop,
    )
    for each in ("", "begun", "done"):
        receipts.write(7, ["kept", "gone"], each)
        receipts.write(8, ["other"], each)
    receipts.strike(["gone", "never"], kind)
    both = {"kept", "gone", "other"}
    assert receipts.names() == {"": both, "begun": both, "done": both} | {kind: {"kept", "other"}}
    receipts.forget(8)
    assert receipts.names() == {each: {"other"} for each in ("", "begun", "done")}, "what is left is of its epoch"
