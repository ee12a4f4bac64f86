"""The journal of a socket: what it has acknowledged it gives again, whatever dies, and nothing it has not."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerError,
    LedgerFromTheFuture,
    PositionsLost,
    StorageFull,
    Superseded,
    SystemUnavailable,
)
from penstock.sources.socket import journal as journals
from penstock.sources.socket.journal import Journal
from penstock.sources.socket.journal_format import HEADER_BYTES, pack_frame, pack_header, segment_name
from penstock.sources.socket.journal_reader import JournalReader

STORED = Path(__file__).parents[2] / "data" / "journal-v1"

WRITER = """
import sys
from pathlib import Path
from penstock.sources.socket.journal import Journal
journal = Journal(Path(sys.argv[1]), job="words", source="lines", segment_bytes=2000)
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
        frame.payload for frame in reader.frames(start, reader.bounded(start, 1 << 30) if end is None else end)
    )


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(b"one\ntwo\n", received=5)
    end = journal.append(b"three\n", received=7)
    journal.close()
    reader = JournalReader(tmp_path)
    assert reader.start() == 0
    assert reader.bounded(0, 1000) == end
    told = [(frame.lines, frame.received, frame.payload) for frame in reader.frames(0, end)]
    assert told == [(2, 5, b"one\ntwo\n"), (1, 7, b"three\n")]


@settings(max_examples=60)
@given(
    parts=st.lists(st.binary(max_size=60).map(lambda one: one.replace(b"\n", b"") + b"\n"), min_size=1, max_size=40),
    segment=st.integers(1, 400),
    most=st.integers(1, 300),
)
def test_epochs_of_any_size_cover_it_once(
    parts: list[bytes], segment: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = opened(folder, segment_bytes=segment)
    for part in parts:
        journal.append(part)
    journal.close()
    reader = JournalReader(folder)
    at, seen = 0, b""
    while (end := reader.bounded(at, most)) != at:
        seen += b"".join(frame.payload for frame in reader.frames(at, end))
        at = end
    assert seen == b"".join(parts)
    assert at == journal.end
    shutil.rmtree(folder)


@pytest.mark.parametrize("cut", [1, 3, 19, 20, 21, 30])
def test_a_torn_end_is_cut_off_and_the_rest_goes_on(tmp_path: Path, cut: int) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"whole\n")
    journal.close()
    torn = pack_frame(b"half a frame\n", 1, 0)[:cut]
    with (tmp_path / segment_name(0)).open("ab") as file:
        file.write(torn)
    again = opened(tmp_path)
    assert again.end == end
    again.append(b"next\n")
    assert content(tmp_path) == b"whole\nnext\n"


def test_lines_that_were_not_synced_are_not_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"safe\n")

    def refuse(handle: int) -> None:
        assert JournalReader(tmp_path).bounded(0, 1000) == end, "told before it was durable"
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(journals, "_data_sync", refuse)
        with pytest.raises(Exception, match="the disk is broken"):
            journal.append(b"doubtful\n")
    assert (tmp_path / segment_name(0)).stat().st_size == HEADER_BYTES + end
    journal.append(b"later\n")
    assert content(tmp_path) == b"safe\nlater\n"


def refusing_the_state(torn: bool) -> Callable[[int, bytes, int], int]:
    """As `os.pwrite`, on a disk that takes lines and not the page of the state, or half of it."""
    real = os.pwrite

    def write(handle: int, data: bytes, at: int) -> int:
        if len(data) != 4096:
            return real(handle, data, at)
        if torn:
            return real(handle, data[:20], at)
        raise OSError(errno.EIO, "the disk is broken")

    return write


@pytest.mark.parametrize("torn", [False, True])
def test_lines_that_are_in_are_no_error_though_nobody_could_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    journal = opened(tmp_path)
    journal.append(b"before\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refusing_the_state(torn))
        journal.append(b"once\n")
        assert journal.unannounced
        with pytest.raises(LedgerError):
            journal.announce()
    journal.announce()
    assert not journal.unannounced
    assert content(tmp_path) == b"before\nonce\n"
    journal.append(b"after\n")
    assert content(tmp_path) == b"before\nonce\nafter\n"


def test_one_who_takes_over_from_an_owner_that_could_not_tell_has_its_lines_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refusing_the_state(torn=True))
        old.append(b"once\n")
    new = opened(tmp_path)
    with pytest.raises(Superseded):
        old.announce()
    with pytest.raises(Superseded):
        old.append(b"too late\n")
    new.append(b"new\n")
    assert content(tmp_path) == b"once\nnew\n"


def test_a_new_segment_that_cannot_be_opened_does_not_cost_the_lines_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    end = journal.append(b"one\n")
    real = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if os.fspath(path).endswith(segment_name(end)):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(LedgerError, match="Too many open files"):
            journal.append(b"two\n")
    journal.append(b"two\n")
    assert content(tmp_path) == b"one\ntwo\n"
    journal.append(b"three\n")
    assert content(tmp_path) == b"one\ntwo\nthree\n"
    opened(tmp_path)


def test_a_segment_that_an_owner_before_has_made_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died between giving the name and syncing the folder."""
    opened(tmp_path).append(b"one\n")
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    monkeypatch.setattr(journals, "claim_journal", lambda *_: None)
    opened(tmp_path)
    assert str(tmp_path) in synced


# Whose it is


def modes(folder: Path) -> dict[str, str]:
    return {one.name or "": oct(one.stat().st_mode & 0o777) for one in (folder, *folder.iterdir())}


def test_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = opened(tmp_path / "over" / "journal", segment_bytes=1)
        journal.append(b"one\n")
        journal.append(b"two\n")
    finally:
        os.umask(before)
    found = modes(tmp_path / "over" / "journal")
    assert found.pop("journal") == "0o700"
    assert len(found) == 5
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


def test_a_full_disk_is_named_and_leaves_no_half_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    real = os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        if len(data) == 4096:
            return real(handle, data, at)  # the page of the state has its place already
        if len(data) > 10:
            return real(handle, bytes(data[:10]), at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull) as refused:
            journal.append(b"0123456789 12\n")
        journal.complain(refused.value)
        with pytest.raises(StorageFull, match="No space left"):
            JournalReader(tmp_path).bounded(0, 100)
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
    old = opened(tmp_path, segment_bytes=1)
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


def test_whole_segments_are_deleted_and_never_more(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    ends = [journal.append(b"%d\n" % number) for number in range(5)]
    assert journal.trim(ends[1] - 1) == 1
    assert journal.trim(ends[1]) == 1
    assert journal.start == ends[1]
    assert content(tmp_path, ends[1]) == b"2\n3\n4\n"
    assert journal.trim(ends[4] + 100) == 2, "the newest segment stays"
    journal.append(b"5\n")
    assert content(tmp_path, ends[3]) == b"4\n5\n"


def test_positions_that_are_gone_stop_the_job(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    ends = [journal.append(b"%d\n" % number) for number in range(3)]
    journal.trim(ends[1])
    with pytest.raises(PositionsLost, match=f"begins at position {ends[1]}, and position {ends[0]}"):
        JournalReader(tmp_path).bounded(ends[0], 100)
    with pytest.raises(PositionsLost):
        list(JournalReader(tmp_path).frames(ends[0], ends[2]))
    lenient = JournalReader(tmp_path, strict=False)
    assert [frame.payload for frame in lenient.frames(0, ends[2])] == [b"2\n"]
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
    journal.append(b"first\n")
    end = journal.append(b"second\n")
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 22] ^= 1
    path.write_bytes(data)
    with pytest.raises(PositionsLost, match="damaged at position 0"):
        list(JournalReader(tmp_path).frames(0, end))
    journal.close()
    with pytest.raises(PositionsLost, match="damaged at position 0"):
        opened(tmp_path)  # acknowledged lines are no torn end


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    ends = [journal.append(b"%d\n" % number) for number in range(3)]
    journal.close()
    (tmp_path / segment_name(ends[0])).unlink()
    with pytest.raises(PositionsLost):
        opened(tmp_path)


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
    assert [(one.start, one.received, one.payload) for one in JournalReader(folder).frames(0, again.end)] == [
        (0, 1_767_225_600_000_000, b"to be or\nnot to be\n"),
        (39, 1_767_225_600_500_000, "grüße\r\n\n".encode()),
        (69, 1_767_225_601_000_000, b"the end\n"),
    ]
    again.append(b"goes on\n")
    assert content(folder, 69) == b"the end\ngoes on\n"


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "header")
    path = tmp_path / "header" / segment_name(69)
    data = bytearray(path.read_bytes())
    data[9] = 2
    path.write_bytes(data)
    with pytest.raises(LedgerFromTheFuture, match="has version 2"):
        opened(tmp_path / "header")
    shutil.copytree(STORED, tmp_path / "identity")
    (tmp_path / "identity" / "journal.json").write_text(json.dumps({"version": 2, "job": "words", "source": "lines"}))
    with pytest.raises(LedgerFromTheFuture, match="has version 2"):
        opened(tmp_path / "identity")


def test_a_header_of_another_position_is_damage(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / segment_name(0)).write_bytes(pack_header(7))
    with pytest.raises(PositionsLost):
        opened(tmp_path)


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
    """Whether the frame under way survives is open, as it was told to nobody. What was told survives."""
    environment = {**os.environ, "PENSTOCK_FAILPOINTS": f"{point}=crash@5"}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    promised = int(done.stdout.split()[-1])
    assert promised == 28
    told = len(content(tmp_path).splitlines())
    assert told == promised, "readers know of what was told, and of no more"
    opened(tmp_path).append(b"next\n")
    assert content(tmp_path).splitlines()[:promised] == [b"line %d" % number for number in range(promised)]
