"""The journal of a socket: what it has acknowledged it gives again, whatever dies, and nothing it has not."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    LedgerFromTheFuture,
    PositionsLost,
    StorageFull,
    Superseded,
    SystemUnavailable,
)
from penstock.sources import journal as journals
from penstock.sources.journal import Journal, JournalReader

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
    most=st.integers(1, 300),
)
def test_epochs_of_any_size_cover_it_once(
    parts: list[bytes], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
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


def fill_disk(journal: Journal) -> None:
    """SQLite refuses to grow the file, as on a full disk."""
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count={pages}")


def test_lines_that_do_not_fit_are_not_in(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"safe\n")
    fill_disk(journal)
    with pytest.raises(StorageFull) as refused:
        journal.append(b"x" * 20_000 + b"\n")
    assert journal.end == end
    assert content(tmp_path) == b"safe\n"
    journal.report(refused.value)
    with pytest.raises(StorageFull, match="disk is full"):
        JournalReader(tmp_path).bounded(end, 100)
    journal._database.execute("PRAGMA max_page_count=1000000")
    journal.append(b"later\n")
    assert content(tmp_path) == b"safe\nlater\n"


def test_a_reader_goes_on_where_frames_are_deleted_under_its_hands(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(5)]
    reading = JournalReader(tmp_path).frames(0, ends[-1])
    first = next(reading)
    assert journal.trim(ends[3]) == 4
    assert b"".join(frame.lines for frame in (first, *reading)) == b"0\n1\n2\n3\n4\n"


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
    assert {"journal.sqlite", "journal.sqlite-wal"} <= found.keys()
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
    with old._change(), pytest.raises(SystemUnavailable, match="locked by another process"):
        opened(tmp_path)
    opened(tmp_path).append(b"free\n")


def test_whole_frames_are_deleted_and_never_more(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(5)]
    assert journal.trim(ends[1] - 1) == 1
    assert journal.trim(ends[1]) == 1
    assert JournalReader(tmp_path).extent() == (ends[1], ends[4])
    assert content(tmp_path, ends[1]) == b"2\n3\n4\n"
    assert journal.trim(ends[4] + 100) == 2, "the newest frame stays"
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


def test_what_is_deleted_gives_its_space_back(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    end = [journal.append(b"x" * 100_000 + b"\n") for _ in range(20)][-1]
    journal.trim(end)
    journal.close()
    assert (tmp_path / "journal.sqlite").stat().st_size < 200_000


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    end = journal.append(b"first\n")
    journal.append(b"second\n")
    journal.close()
    path = tmp_path / "journal.sqlite"
    path.write_bytes(path.read_bytes().replace(b"second", b"sebond"))
    with pytest.raises(PositionsLost, match=f"damaged at position {end}"):
        list(JournalReader(tmp_path).frames(0, end + 7))
    opened(tmp_path).append(b"third\n")  # lines that were received are never cut off
    with pytest.raises(PositionsLost, match=f"damaged at position {end}"):
        content(tmp_path)


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "journal.sqlite").write_bytes(b"this is no database at all" * 200)
    with pytest.raises(PositionsLost, match="damaged"):
        opened(tmp_path)
    with pytest.raises(PositionsLost, match="damaged"):
        content(tmp_path)


def test_a_missing_frame_is_found(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    ends = [journal.append(b"%d\n" % number) for number in range(3)]
    journal._database.execute("DELETE FROM frames WHERE start = ?", (ends[0],))
    with pytest.raises(PositionsLost, match=f"damaged at position {ends[0]}"):
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
    sqlite3.connect(tmp_path / "journal.sqlite").close()  # its first owner died while it made the tables
    (tmp_path / "journal.sqlite").touch()
    with pytest.raises(SystemUnavailable, match="has not been opened"):
        JournalReader(tmp_path).bounded(0, 10)
    opened(tmp_path).append(b"one\n")
    assert content(tmp_path) == b"one\n"


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


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)._database.execute("UPDATE journal SET version = 2")
    with pytest.raises(LedgerFromTheFuture, match="has version 2"):
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
