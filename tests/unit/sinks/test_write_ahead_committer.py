"""The write-ahead sink's table of outcomes, row by row, with a target in memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.checkpoint.inflight import LogWriter
from penstock.contracts.sink import Leftover, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PreCommitFailed, StorageFull, SystemUnavailable
from penstock.sinks.files.commit import Receipts
from penstock.sinks.write_ahead import WriteAheadSink
from penstock.sinks.write_ahead.commit import KEPT_EPOCHS, HandingCommitter, LoggingWriter, RowLog
from tests.support.fake_sleep import record_pauses, sleeping

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})


class Target:
    """Somebody else's system: `taken` are the ids it has, `rows` what it shows."""

    def __init__(self, folder: Path, *, marker: bool = True, idempotent: bool = False) -> None:
        self.rows: list[int] = []
        self.taken: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.asked = 0
        self.away = False
        self.sink = WriteAheadSink(
            self.write, log=str(folder), marker=self.marker if marker else None, idempotent=idempotent, name="target"
        )
        self.row_log = RowLog(str(folder), SinkScope("job", "out", 3))

    def write(self, rows: Iterator[pa.RecordBatch], epoch_id: str) -> None:
        self.before()
        found = [value for batch in rows for value in batch.column(0).to_pylist()]
        if epoch_id in self.taken:
            raise ValueError("this id was taken before")
        self.rows += found
        self.taken.append(epoch_id)
        self.after()

    def marker(self) -> list[str]:
        self.asked += 1
        if self.away:
            raise OSError("away")
        return self.taken

    def prepare(self, writer: int = 0, *, generation: int = 3, batch: pa.RecordBatch | None = BATCH) -> Committable:
        made = LoggingWriter(self.sink.log, WriterScope(SinkScope("job", "out", generation), 7, 1, writer, 0, {}))
        if batch is not None:
            made.write(batch)
        return Committable("out", writer, 3, 0, made.pre_commit())

    def committer(self, generation: int = 3) -> HandingCommitter:
        return HandingCommitter(self.sink, SinkScope("job", "out", generation))

    def notes(self) -> tuple[set[str], set[str]]:
        names = self.row_log.notes.names()
        return names["begun"], names["done"]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "log")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return record_pauses(monkeypatch, "penstock.sinks.write_ahead.commit")


def rows_of(one: Committable) -> str:
    return str(one.payload["rows"])


def fails(times: int, error: BaseException) -> Callable[[], None]:
    left = [error] * times

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


def soon() -> Deadline:
    return Deadline(60)


# Writing


def test_a_writer_hands_back_what_proves_its_rows(target: Target) -> None:
    one, other = target.prepare(4), target.prepare(4)
    prefix = SinkScope("job", "out", 3).prefix
    token = one.payload["id"].removeprefix(f"{prefix}:4:7:")
    assert len(token) == 12
    assert rows_of(one) == f"g00000003-e0000000007-a1-p00004-t0-{token}.arrow"
    assert target.row_log.size(rows_of(one)) == one.payload["bytes"] > 0
    assert other.payload["id"] != one.payload["id"]
    assert [
        batch.to_pydict() for batch in target.row_log.read(rows_of(one), one.payload["bytes"], one.payload["crc"])
    ] == [{"id": [1, 2, 3]}]


def test_a_writer_without_rows_prepares_nothing(target: Target) -> None:
    target.committer()
    one = target.prepare(batch=None)
    assert one.payload == {}
    assert target.row_log.waiting() == {}


def test_an_aborted_writer_leaves_nothing(target: Target) -> None:
    writer = LoggingWriter(target.sink.log, WriterScope(SinkScope("job", "out", 3), 7, 1, 0, 0, {}))
    writer.abort()
    writer.write(BATCH)
    writer.abort()
    assert target.row_log.waiting() == {}


def test_a_log_that_was_removed_is_not_prepared(target: Target) -> None:
    writer = LoggingWriter(target.sink.log, WriterScope(SinkScope("job", "out", 3), 7, 1, 0, 0, {}))
    writer.write(BATCH)
    [name] = target.row_log.waiting()
    target.row_log.remove([name])
    with pytest.raises(PreCommitFailed, match=f"{name} was removed"):
        writer.pre_commit()


def test_a_full_disk_is_named(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LoggingWriter(target.sink.log, WriterScope(SinkScope("job", "out", 3), 7, 1, 0, 0, {}))
    monkeypatch.setattr(RowLog, "open", lambda *_: fails(1, OSError(errno.ENOSPC, "No space"))())
    with pytest.raises(StorageFull, match=target.sink.log) as refused:
        writer.write(BATCH)
    assert "it replays from the same positions" in refused.value.safe


def test_a_full_disk_before_the_first_epoch_is_named(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    full = fails(1, OSError(errno.ENOSPC, "No space"))
    monkeypatch.setattr(target.row_log._storage, "create_folder", lambda _: full())
    with pytest.raises(StorageFull, match=target.sink.log) as refused:
        target.row_log.create()
    assert refused.value.safe == "nothing was started"


# Sealing


def test_what_is_there_whole_is_sealed(target: Target) -> None:
    ones = [target.prepare(0), target.prepare(1), Committable("out", 2, 0, 0)]
    assert target.committer().seal(ones, soon()) == ones


def test_what_is_sealed_is_made_durable_by_the_driver(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    secured: list[str] = []
    monkeypatch.setattr(RowLog, "secure", lambda self, name: secured.append(name))
    ones = [target.prepare(0), target.prepare(1), Committable("out", 2, 0, 0)]
    target.committer().seal(ones, soon())
    assert secured == [rows_of(one) for one in ones[:2]]


@pytest.mark.parametrize("off", [1, -1])
def test_what_is_gone_or_changed_is_not_sealed(target: Target, off: int) -> None:
    one = target.prepare()
    other = one.with_payload(bytes=one.payload["bytes"] + off)
    with pytest.raises(PreCommitFailed, match=rows_of(one)):
        target.committer().seal([other], soon())
    target.row_log.remove([rows_of(one)])
    with pytest.raises(PreCommitFailed, match="writer 0 of sink 'out'"):
        target.committer().seal([one], soon())


# The table


def test_prepared_rows_are_handed_over_once_and_noted(target: Target) -> None:
    ones = [target.prepare(0), target.prepare(1), Committable("out", 2, 0, 0)]
    outcomes = target.committer().commit(7, ones, soon())
    assert outcomes == dict.fromkeys(range(3), Outcome.COMMITTED)
    assert target.rows == [1, 2, 3, 1, 2, 3]
    assert target.taken == [one.payload["id"] for one in ones[:2]]
    names = {rows_of(one) for one in ones[:2]}
    assert target.notes() == (names, names)
    assert target.row_log.waiting() == {}, "what is taken leaves the log"
    again = target.committer(4).commit(7, ones, soon())
    assert again == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED, 2: Outcome.COMMITTED}
    assert len(target.rows) == 6


def test_begun_is_noted_before_the_first_row_leaves_and_done_before_its_log_goes(target: Target) -> None:
    ones = [target.prepare(0), target.prepare(1)]
    names = {rows_of(one) for one in ones}
    seen: list[Any] = []
    target.before = lambda: seen.append((*target.notes(), set(target.row_log.waiting())))
    target.committer().commit(7, ones, soon())
    assert seen == [(names, set(), names)] * 2, "a target with a marker is noted once, at the end"


def test_where_a_second_write_would_show_each_is_noted_at_once(tmp_path: Path) -> None:
    target = Target(tmp_path / "log", marker=False)
    ones = [target.prepare(0), target.prepare(1)]
    first, second = map(rows_of, ones)
    seen: list[Any] = []
    target.before = lambda: seen.append((target.notes()[1], set(target.row_log.waiting())))
    target.committer().commit(7, ones, soon())
    assert seen == [(set(), {first, second}), ({first}, {second})]
    assert target.notes()[1] == {first, second}


def test_an_acknowledgement_that_was_lost_is_found_in_the_target(target: Target) -> None:
    """Written, then the driver died: the next one asks the target, and writes nothing twice."""
    one = target.prepare()
    target.after = fails(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        target.committer().commit(7, [one], soon())
    assert target.committer(4).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    assert target.rows == [1, 2, 3]
    assert target.row_log.waiting() == {}


def test_an_error_after_the_write_is_looked_at_before_it_is_written_again(target: Target, pauses: list[float]) -> None:
    one = target.prepare()
    target.after = fails(1, TimeoutError())
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert target.rows == [1, 2, 3]
    assert pauses == []


def test_a_driver_that_died_before_the_write_is_succeeded(target: Target) -> None:
    one = target.prepare()
    target.before = fails(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        target.committer().commit(7, [one], soon())
    assert target.committer(4).commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert target.rows == [1, 2, 3]


def test_the_target_is_asked_only_for_what_it_may_have(target: Target) -> None:
    target.committer().commit(7, [target.prepare()], soon())
    assert target.asked == 0


def test_without_a_marker_an_unanswered_write_is_written_again(tmp_path: Path) -> None:
    target = Target(tmp_path / "log", marker=False)
    one = target.prepare()
    target.after = fails(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        target.committer().commit(7, [one], soon())
    target.taken.clear()
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert target.rows == [1, 2, 3] * 2


def test_what_was_never_handed_over_and_is_gone_is_lost(target: Target) -> None:
    one = target.prepare()
    target.row_log.remove([rows_of(one)])
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.LOST}


def test_what_was_begun_and_is_gone_is_unknown(target: Target) -> None:
    one = target.prepare()
    target.committer()
    target.row_log.notes.write(7, [rows_of(one)], "begun")
    target.row_log.remove([rows_of(one)])
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
    target.taken.append(one.payload["id"])
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}


# Trouble


def test_a_target_that_fails_is_tried_less_and_less_often(target: Target, pauses: list[float]) -> None:
    one = target.prepare()
    target.before = fails(6, OSError("away"))
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert pauses == [0.05, 0.2, 1.0, 2.0, 2.0, 2.0]
    assert target.rows == [1, 2, 3]


def test_a_target_whose_marker_is_away_too_is_tried_again(target: Target) -> None:
    one = target.prepare()
    target.before = fails(2, OSError("away"))
    target.away = True
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.COMMITTED}


def test_a_target_that_stays_away_leaves_the_rows_in_the_log(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.write_ahead.commit", lambda s: now.__setitem__(0, now[0] + max(s, 0.001)))
    one = target.prepare()
    target.before = fails(1_000, OSError("away"))
    assert target.committer().commit(7, [one], Deadline(5, clock=lambda: now[0])) == {0: Outcome.UNKNOWN}
    assert now[0] < 5.1, "no pause goes beyond the deadline"
    assert list(target.row_log.waiting()) == [rows_of(one)]
    assert target.notes() == ({rows_of(one)}, set())


def test_after_the_deadline_nothing_is_begun(target: Target) -> None:
    ones = [target.prepare(0), target.prepare(1), Committable("out", 2, 0, 0)]
    target.committer().commit(7, ones[:1], soon())
    late = target.committer().commit(7, ones, Deadline(0))
    assert late == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.UNKNOWN, 2: Outcome.COMMITTED}
    assert target.notes()[0] == {rows_of(ones[0])}


def test_begun_is_noted_once(target: Target) -> None:
    one = target.prepare()
    target.before = fails(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        target.committer().commit(7, [one], soon())
    before = len(list(Path(target.sink.log).rglob("*.begun")))
    target.committer().commit(7, [one], soon())
    assert len(list(Path(target.sink.log).rglob("*.begun"))) == before == 1


def test_an_error_that_no_trying_cures_is_raised(target: Target) -> None:
    one = target.prepare()
    target.before = fails(1, ConfigurationError("No such table."))
    with pytest.raises(ConfigurationError):
        target.committer().commit(7, [one], soon())
    target.before = fails(1, SystemUnavailable("Away."))
    assert target.committer().commit(7, [one], soon()) == {0: Outcome.COMMITTED}


def test_a_damaged_log_is_for_a_person_and_the_others_go_on(target: Target) -> None:
    ones = [target.prepare(0), target.prepare(1)]
    [path] = Path(target.sink.log).rglob(rows_of(ones[0]))
    path.write_bytes(b"!" * path.stat().st_size)
    assert target.committer().commit(7, ones, soon()) == {0: Outcome.UNKNOWN, 1: Outcome.COMMITTED}
    assert target.notes()[1] == {rows_of(ones[1])}
    assert list(target.row_log.waiting()) == [rows_of(ones[0])]


def test_notes_of_the_last_epochs_are_kept(target: Target) -> None:
    for epoch in (7, 8, 8 + KEPT_EPOCHS):
        target.committer().commit(epoch, [target.prepare()], soon())
    kept = {path.name[:11] for path in Path(target.sink.log).rglob("*.done")}
    assert kept == {"e0000000008", f"e{8 + KEPT_EPOCHS:010d}"}


def test_a_full_disk_while_committing_is_named(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    one = target.prepare()
    committer = target.committer()
    monkeypatch.setattr(Receipts, "write", lambda *_: fails(1, OSError(errno.ENOSPC, "No space"))())
    with pytest.raises(StorageFull, match=target.sink.log) as refused:
        committer.commit(7, [one], soon())
    assert refused.value.safe == "the epoch is decided, its rows wait in the log"


# Aborting


def test_exactly_these_are_aborted_and_what_has_begun_stays(target: Target) -> None:
    ones = [target.prepare(n) for n in range(3)]
    target.committer()
    target.row_log.notes.write(7, [rows_of(ones[1])], "begun")
    target.committer().abort([ones[0], ones[1], Committable("out", 9, 0, 0)], soon())
    assert sorted(target.row_log.waiting()) == sorted(map(rows_of, ones[1:]))


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(target: Target) -> None:
    kept, newer = target.prepare(0), target.prepare(1, generation=4)
    target.prepare(2), target.prepare(3, generation=2)
    committer = target.committer()
    assert committer.abort_dangling([kept, Committable("out", 9, 0, 0)], soon()) == 2
    assert sorted(target.row_log.waiting()) == sorted(map(rows_of, (kept, newer)))
    assert committer.abort_dangling([kept], soon()) == 0


def test_leftovers_are_told_as_they_are(target: Target) -> None:
    late, early = target.prepare(2), target.prepare(1, generation=2)
    target.prepare(3, generation=4)
    assert target.committer().leftovers(soon()) == [
        Leftover(rows_of(early), 2, payload={"rows": rows_of(early)}),
        Leftover(rows_of(late), 3, payload={"rows": rows_of(late)}),
    ]


def test_a_full_disk_at_the_end_of_a_log_is_named(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LoggingWriter(target.sink.log, WriterScope(SinkScope("job", "out", 3), 7, 1, 0, 0, {}))
    writer.write(BATCH)
    monkeypatch.setattr(LogWriter, "close", lambda _: fails(1, OSError(errno.ENOSPC, "No space"))())
    with pytest.raises(StorageFull, match=target.sink.log) as refused:
        writer.pre_commit()
    assert "it replays from the same positions" in refused.value.safe


def test_its_folders_are_made_at_the_start(target: Target) -> None:
    """Where that cannot be done, the job does not start."""
    target.committer()
    assert sorted(path.name for path in Path(target.sink.log).glob("job/out/*")) == ["notes", "rows"]


def test_a_marker_that_does_not_answer_is_no_proof(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.write_ahead.commit", lambda s: now.__setitem__(0, now[0] + 1))
    one = target.prepare()
    target.before = fails(1_000, OSError("away"))
    target.away = True
    assert target.committer().commit(7, [one], Deadline(3, clock=lambda: now[0])) == {0: Outcome.UNKNOWN}


def test_what_its_note_calls_done_is_done_though_the_target_has_no_ids(tmp_path: Path) -> None:
    target = Target(tmp_path / "log", marker=False)
    one, two = target.prepare(0), target.prepare(1)
    committer = target.committer()
    assert committer.commit(7, [one], Deadline(60)) == {0: Outcome.COMMITTED}
    again = target.committer(4).commit(7, [one, two], Deadline(60))
    assert again == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.COMMITTED}
    assert target.rows == [1, 2, 3] * 2


def test_each_log_survives_a_power_cut_before_the_decision(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    one, none, two = target.prepare(0), target.prepare(1, batch=None), target.prepare(2)
    committer, secured = target.committer(), list[str]()
    monkeypatch.setattr(committer._row_log._storage, "secure", secured.append)
    committer.seal([one, none, two], Deadline(60))
    folder = committer._row_log._folder
    assert secured == [f"{folder}/rows/{rows_of(each)}" for each in (one, two)]
