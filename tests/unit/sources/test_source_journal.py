"""The journal of a socket: what it has acknowledged it gives again, whatever dies, and nothing it has not."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint import inflight
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerError,
    LedgerFromTheFuture,
    PenstockError,
    PositionsLost,
    StorageFull,
    Superseded,
    SystemUnavailable,
)
from penstock.sources import journal as journals
from penstock.sources.journal import Journal, JournalReader, list_segments

STORED = Path(__file__).parents[2] / "data" / "journal-v1"

WRITER = """
import sys
from pathlib import Path
from penstock.sources.journal import Journal
journal = Journal(Path(sys.argv[1]), job="words", source="lines")
number = 0
while True:
    journal.append(b"".join(b"line %d\\n" % one for one in range(number, number + 7)))
    number += 7
    print(number, flush=True)
"""


def opened(folder: Path, **more: Any) -> Journal:
    return Journal(folder, job="words", source="lines", **more)


def content(folder: Path, start: int = 0, end: int | None = None) -> bytes:
    reader = JournalReader(folder)
    return b"".join(
        frame.lines for frame in reader.frames(start, reader.bounded(start, 1 << 30) if end is None else end)
    )


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(b"one\ntwo\n", received=5)
    end = journal.append(b"three\n", received=7)
    journal.close()
    reader = JournalReader(tmp_path)
    assert reader.extent() == (0, end)
    assert reader.bounded(0, 1000) == end
    frames = [(frame.start, frame.received, frame.lines) for frame in reader.frames(0, end)]
    assert frames == [(0, 5, b"one\ntwo\n"), (8, 7, b"three\n")]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=60).map(lambda one: one.replace(b"\n", b"") + b"\n"), min_size=1, max_size=40),
    merged=st.integers(2, 9),
    most=st.integers(1, 300),
)
def test_epochs_of_any_size_cover_it_once(
    parts: list[bytes], merged: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "_MERGED", merged)
        patch.setattr(journals, "_SMALL", (50, 500))
        journal = opened(folder)
        for part in parts:
            journal.append(part)
    journal.close()
    reader = JournalReader(folder)
    at, seen = 0, b""
    while (end := reader.bounded(at, most)) != at:
        seen += b"".join(frame.lines for frame in reader.frames(at, end))
        at = end
    assert seen == b"".join(parts)
    assert at == journal.end
    shutil.rmtree(folder)


def test_many_small_files_become_one_and_readers_see_the_same_lines(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number, received=number) for number in range(journals._MERGED + 1)]
    assert [(one.start, one.end) for one in list_segments(tmp_path)] == [(0, ends[-2]), (ends[-2], ends[-1])]
    frames = list(JournalReader(tmp_path).frames(ends[3], ends[-1]))
    assert [(frame.received, frame.lines) for frame in frames][:2] == [(4, b"4\n"), (5, b"5\n")]
    assert b"".join(frame.lines for frame in frames) == content(tmp_path, ends[3])


def test_files_that_a_merged_one_covers_are_not_read_twice_and_go_with_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash between the merge and the deletion."""
    monkeypatch.setattr(journals, "_MERGED", 3)
    monkeypatch.setattr(Journal, "_delete", lambda *_: None)
    journal = opened(tmp_path)
    for number in range(3):
        journal.append(b"%d\n" % number)
    assert len(list(tmp_path.glob("*.arrow"))) == 4
    assert content(tmp_path) == b"0\n1\n2\n"
    opened(tmp_path)
    assert len(list(tmp_path.glob("*.arrow"))) == 1
    assert content(tmp_path) == b"0\n1\n2\n"


def test_a_reader_goes_on_where_files_are_merged_under_its_hands(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(journals._MERGED - 1)]
    reading = JournalReader(tmp_path).frames(0, ends[-1])
    first = next(reading)
    journal.append(b"merged\n")
    assert len(list_segments(tmp_path)) == 1
    assert b"".join(frame.lines for frame in (first, *reading)) == content(tmp_path, 0, ends[-1])


def test_a_file_without_its_name_is_removed_and_the_journal_goes_on(tmp_path: Path) -> None:
    """As after a crash in an append."""
    journal = opened(tmp_path)
    end = journal.append(b"whole\n")
    journal.close()
    (tmp_path / ".0123456789abcdef").write_bytes(b"half a fil")
    assert content(tmp_path) == b"whole\n"
    again = opened(tmp_path)
    assert again.end == end
    assert not (tmp_path / ".0123456789abcdef").exists()
    again.append(b"next\n")
    assert content(tmp_path) == b"whole\nnext\n"


def refusing(handle_of: str) -> Callable[[int], None]:
    """As `os.fsync`, on a disk that does not sync files, or folders."""
    real = os.fsync

    def sync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) == (handle_of == "folder"):
            raise OSError(errno.EIO, "the disk is broken")
        real(handle)

    return sync


def test_lines_that_were_not_synced_are_not_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"safe\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refusing("file"))
        with pytest.raises(LedgerError, match="the disk is broken"):
            journal.append(b"doubtful\n")
    assert journal.end == end
    assert content(tmp_path) == b"safe\n"
    journal.append(b"later\n")
    assert content(tmp_path) == b"safe\nlater\n"


def test_a_reader_names_no_position_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may have died between giving the name and syncing it."""
    journal = opened(tmp_path)
    journal.append(b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refusing("folder"))
        with pytest.raises(PenstockError):
            JournalReader(tmp_path).bounded(0, 100)
    assert content(tmp_path) == b"one\n"


def test_lines_that_are_in_are_made_durable_and_not_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"before\n")
    real, renamed = journal._tree.rename, threading.Event()

    def rename(source: str, target: str) -> None:
        real(source, target)
        renamed.set()

    def sync(folder: str) -> None:
        if renamed.is_set():
            raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(journal._tree, "rename", rename)
        patch.setattr(journal._tree, "sync", sync)
        with pytest.raises(LedgerError):
            journal.append(b"once\n")
        assert journal.end > end
        with pytest.raises(LedgerError):
            journal.append(b"")
    journal.append(b"")
    journal.append(b"after\n")
    assert content(tmp_path) == b"before\nonce\nafter\n"


def test_a_segment_that_an_owner_before_has_made_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died between giving the name and syncing the folder."""
    opened(tmp_path).append(b"one\n")
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    monkeypatch.setattr(journals, "claim_journal", lambda *_, **__: 0)
    opened(tmp_path)
    assert str(tmp_path) in synced


# Whose it is


def modes(folder: Path) -> dict[str, str]:
    return {one.name or "": oct(one.stat().st_mode & 0o777) for one in (folder, *folder.iterdir())}


def test_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = opened(tmp_path / "over" / "journal")
        journal.append(b"one\n")
        journal.append(b"two\n")
    finally:
        os.umask(before)
    found = modes(tmp_path / "over" / "journal")
    assert found.pop("journal") == "0o700"
    assert len(found) == 6
    assert set(found.values()) == {"0o600"}


def test_what_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    opened(folder).append(b"one\n")
    for one in (*folder.iterdir(), folder):
        one.chmod(0o755 if one == folder else 0o644)
    opened(folder)
    found = modes(folder)
    assert found.pop("journal") == "0o700"
    assert set(found.values()) == {"0o600"}


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o777)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(AccessDenied, match="belongs to user"):
        opened(folder)
    assert not list(folder.iterdir())


def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    before = set(tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull) as refused:
            journal.append(b"0123456789 12\n")
        journal.report(refused.value)
        with pytest.raises(StorageFull, match="No space left"):
            JournalReader(tmp_path).bounded(0, 100)
    assert set(tmp_path.iterdir()) == before
    journal.append(b"room again\n")
    assert content(tmp_path) == b"room again\n"


def test_an_older_owner_loses(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.append(b"old\n")
    new = opened(tmp_path)
    with pytest.raises(Superseded, match="taken over"):
        old.append(b"too late\n")
    with pytest.raises(Superseded):
        old.append(b"too late again\n")
    new.append(b"new\n")
    assert content(tmp_path) == b"old\nnew\n"


def test_an_older_owner_deletes_nothing(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.append(b"one\n")
    end = old.append(b"two\n")
    opened(tmp_path)
    with pytest.raises(Superseded):
        old.trim(end)
    assert content(tmp_path) == b"one\ntwo\n"


def test_an_owner_that_stands_still_in_the_middle_of_its_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "LOCK_SECONDS", 0.05)
    old = opened(tmp_path)
    with old._locked(), pytest.raises(SystemUnavailable, match=f"locked by process {os.getpid()}"):
        opened(tmp_path)
    opened(tmp_path).append(b"free\n")


def test_whole_files_are_deleted_and_never_more(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(5)]
    assert journal.trim(ends[1] - 1) == 1
    assert journal.trim(ends[1]) == 1
    assert JournalReader(tmp_path).extent() == (ends[1], ends[4])
    assert content(tmp_path, ends[1]) == b"2\n3\n4\n"
    assert journal.trim(ends[4] + 100) == 2, "the newest file stays"
    journal.append(b"5\n")
    assert content(tmp_path, ends[3]) == b"4\n5\n"


def test_positions_that_are_gone_stop_the_job(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(3)]
    journal.trim(ends[1])
    with pytest.raises(PositionsLost, match=f"begins at position {ends[1]}, and position {ends[0]}"):
        JournalReader(tmp_path).bounded(ends[0], 100)
    with pytest.raises(PositionsLost):
        list(JournalReader(tmp_path).frames(ends[0], ends[2]))
    lenient = JournalReader(tmp_path, strict=False)
    assert [frame.lines for frame in lenient.frames(0, ends[2])] == [b"2\n"]
    assert list(lenient.frames(0, ends[0])) == []


def test_a_journal_that_is_behind_the_checkpoint_stops_the_job(tmp_path: Path) -> None:
    """Deleted, or not the one that belongs to the checkpoint: new lines would be skipped as if they had been read."""
    opened(tmp_path).append(b"new\n")
    with pytest.raises(PositionsLost, match="the checkpoint is at 5000"):
        JournalReader(tmp_path).bounded(5000, 100)
    with pytest.raises(PositionsLost, match="the checkpoint is at 6000"):
        list(JournalReader(tmp_path).frames(5000, 6000))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"first\n")
    journal.append(b"second\n")
    path = tmp_path / list_segments(tmp_path)[1].name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PositionsLost, match=f"damaged at position {end}"):
        list(JournalReader(tmp_path).frames(0, end + 7))
    journal.close()
    opened(tmp_path).append(b"third\n")  # lines that were received are never cut off
    with pytest.raises(PositionsLost, match=f"damaged at position {end}"):
        content(tmp_path)


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(3)]
    journal.close()
    (tmp_path / list_segments(tmp_path)[1].name).unlink()
    with pytest.raises(PositionsLost, match=f"damaged at position {ends[0]}"):
        opened(tmp_path)
    with pytest.raises(PositionsLost):
        content(tmp_path)


def test_a_position_between_two_frames_is_the_only_one_to_read_from(tmp_path: Path) -> None:
    opened(tmp_path).append(b"one\ntwo\n")
    with pytest.raises(PositionsLost, match="damaged at position 3"):
        list(JournalReader(tmp_path).frames(3, 8))
    with pytest.raises(PositionsLost, match="damaged at position 0"):
        list(JournalReader(tmp_path).frames(0, 5))


def test_a_journal_belongs_to_one_source_of_one_job(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ConfigurationError, match="belongs to source 'lines' of job 'words'"):
        Journal(tmp_path, job="fork", source="lines")
    with pytest.raises(ConfigurationError):
        Journal(tmp_path, job="words", source="others")


def test_a_journal_nobody_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemUnavailable, match="has not been opened"):
        JournalReader(tmp_path / "none").bounded(0, 10)


def test_a_stored_journal_of_version_1_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    shutil.copytree(STORED, folder)
    again = opened(folder)
    assert [(one.start, one.received, one.lines) for one in JournalReader(folder).frames(0, again.end)] == [
        (0, 1_767_225_600_000_000, b"to be or\nnot to be\n"),
        (19, 1_767_225_600_500_000, "grüße\r\n\n".encode()),
        (29, 1_767_225_601_000_000, b"the end\n"),
    ]
    again.append(b"goes on\n")
    assert content(folder, 29) == b"the end\ngoes on\n"


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(inflight, "INFLIGHT_VERSION", 2)
        opened(tmp_path / "file").append(b"one\n")
    with pytest.raises(LedgerFromTheFuture, match="has version 2"):
        content(tmp_path / "file")
    shutil.copytree(STORED, tmp_path / "identity")
    (tmp_path / "identity" / "journal.json").write_text(json.dumps({"version": 2, "job": "words", "source": "lines"}))
    with pytest.raises(LedgerFromTheFuture, match="has version 2"):
        opened(tmp_path / "identity")


def test_killed_at_any_moment_it_keeps_what_it_has_told(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing, three times over: a whole number of frames, at least all that were reported."""
    promised = 0
    for round_ in range(3):
        folder = tmp_path / str(round_)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            wanted = random.randint(2, 60)
            for _ in range(wanted):
                promised = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            promised = max(
                [promised, *(int(line) for line in process.stdout.read().splitlines(True) if line[-1] == "\n")]
            )
        opened(folder)
        lines = content(folder).splitlines()
        assert lines == [b"line %d" % number for number in range(len(lines))]
        assert len(lines) >= promised
        assert len(lines) % 7 == 0


@pytest.mark.parametrize("point", ["journal.written", "journal.synced"])
def test_killed_around_the_sync_it_keeps_what_it_has_told(tmp_path: Path, point: str) -> None:
    """Whether the lines under way survive is open. Those that an append has acknowledged do."""
    environment = {**os.environ, "PENSTOCK_FAILPOINTS": f"{point}=crash@5"}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    promised = int(done.stdout.split()[-1])
    assert promised == 28
    seen = len(content(tmp_path).splitlines())
    assert seen == promised + (7 if point == "journal.synced" else 0), "readers see what is durable, and no more"
    opened(tmp_path).append(b"next\n")
    assert content(tmp_path).splitlines()[:promised] == [b"line %d" % number for number in range(promised)]
