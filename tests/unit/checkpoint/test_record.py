"""Checkpoint records: their format on disk, what is kept, and that writing them never disturbs anybody."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.record import (
    Alignment,
    CheckpointRecord,
    OperatorState,
    PartitionCut,
    SinkShare,
    records,
    shares_of,
    tidy,
)
from penstock.engine.observer import Recorder
from penstock.errors import LedgerCorrupt, LedgerError, LedgerFromTheFuture
from penstock.storage.local import LocalStorage
from tests.support.memory_storage import MemoryStorage

DATA = Path(__file__).parents[2] / "data"
OPERATOR = OperatorState("stateStoreSave", 2000, 100, 3, 65_536, 40_960, "rocksdb", 4)
CUTS = [
    PartitionCut("orders-0", "orders", 900, 10.0, 110.0),
    PartitionCut("orders-1", "orders", 9000, 12.0, 1012.0),
    PartitionCut("orders-2", None, None, 115.0, 215.0),
]
RECORD = CheckpointRecord(
    query="alerts",
    epoch=12,
    generation=7,
    mode="aligned",
    outcome="complete",
    opened=1767225600.25,
    decided=1767225601.5,
    ended=1767225602.0,
    precommit_ms=1200.5,
    commit_ms=450.25,
    sinks=(SinkShare("alerts", 10_000, 3), SinkShare("archive", 10_000, 3, 123_456)),
    inflight_bytes=4096,
    positions=(("orders", {"orders": {"0": 900, "1": 9000}}), (None, "17"), ("ticks", None)),
    state=(OPERATOR,),
    alignment=Alignment.of(CUTS, unknown="1 scan of 'ticks' could not be matched"),
)
FAILED = replace(RECORD, outcome="failed", why="CheckpointExpired: …", decided=None, state=None, alignment=None)


def epochs(storage: Any) -> list[tuple[int, str]]:
    return [(one.epoch, one.outcome) for one in records(storage)]


# The format


def test_a_record_comes_back_as_it_was() -> None:
    storage = MemoryStorage()
    for one in (RECORD, FAILED, replace(RECORD, epoch=13, state=(), sinks=(), positions=())):
        storage.create(one.file, one.to_bytes())
    assert records(storage) == [FAILED, RECORD, replace(RECORD, epoch=13, state=(), sinks=(), positions=())]


def test_what_is_computed_from_it() -> None:
    assert RECORD.total_ms == 1750
    assert RECORD.rows == 20_000
    assert RECORD.state_bytes == 40_960
    assert replace(RECORD, state=(OPERATOR, replace(OPERATOR, state_bytes=None))).state_bytes is None
    assert FAILED.state_bytes is None
    assert RECORD.file == "checkpoints/chk-12.json"
    assert FAILED.file == "checkpoints/chk-12.failed-1767225600250.json"


def test_its_main_numbers() -> None:
    assert RECORD.summary() == {
        "query": "alerts",
        "epoch": 12,
        "generation": 7,
        "mode": "aligned",
        "outcome": "complete",
        "why": None,
        "rows": 20_000,
        "total_ms": 1750,
        "read_ms": 1012.0,
        "precommit_ms": 1200.5,
        "commit_ms": 450.25,
        "inflight_bytes": 4096,
        "state_rows": 2000,
        "state_bytes": 40_960,
        "slowest": "orders-1",
        "skew": 10.0,
        "waited_ms": 902.0,
    }
    unknown = replace(RECORD, alignment=Alignment((), unknown="why"), state=()).summary()
    assert [unknown[name] for name in ("slowest", "skew", "waited_ms", "state_rows")] == [None, None, None, 0]
    assert [FAILED.summary()[name] for name in ("slowest", "skew", "waited_ms", "state_rows")] == [None] * 4


def test_what_each_sink_was_given() -> None:
    files = [Committable("files", number, 5, 1, {"staged": "a", "bytes": 100}) for number in range(3)]
    kafka = [Committable("alerts", 0, 7, 1, {"sequence": 1}), Committable("alerts", 1, 0, 0)]
    assert shares_of([*files, *kafka, Committable("quiet", 0, 0, 0)]) == (
        SinkShare("alerts", 7, 1),
        SinkShare("files", 15, 3, 300),
        SinkShare("quiet", 0, 0),
    )


def test_the_golden_record_is_read() -> None:
    data = (DATA / "checkpoint-v1.json").read_bytes()
    assert CheckpointRecord.of(data, "here") == RECORD


def test_what_is_written_today_is_what_the_golden_record_holds() -> None:
    """Should this fail, the format has changed: where the meaning of a field has, raise the version; add a new file."""
    assert RECORD.to_bytes() == (DATA / "checkpoint-v1.json").read_bytes()


def test_a_field_of_a_later_version_is_passed_over() -> None:
    """A field may be added without a new version; who does not know it reads the rest."""
    from penstock.checkpoint.layout import seal, unseal

    body = unseal("checkpoint", RECORD.to_bytes(), "here")
    body["colour"] = "blue"
    body["sinks"][0]["colour"] = "blue"
    body["alignment"]["partitions"][0]["colour"] = "blue"
    assert CheckpointRecord.of(seal("checkpoint", body), "here") == RECORD


def test_a_damaged_or_newer_record_is_refused() -> None:
    good = RECORD.to_bytes()
    with pytest.raises(LedgerCorrupt):
        CheckpointRecord.of(good[:-20], "here")
    with pytest.raises(LedgerFromTheFuture):
        CheckpointRecord.of(good.replace(b'"version":1}', b'"version":2}'), "here")


def test_the_reader_leaves_out_what_it_cannot_read_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    storage.create("checkpoints/chk-3.json", b"half a fi")
    storage.create("checkpoints/chk-4.json", RECORD.to_bytes().replace(b'"version":1}', b'"version":9}'))
    storage.create("checkpoints/README", b"not ours")
    storage.create(RECORD.file, RECORD.to_bytes())
    assert records(storage) == [RECORD]
    assert [one for one in ("chk-3", "chk-4", "README") if one in caplog.text] == ["chk-3", "chk-4"]


def test_records_are_in_the_order_of_their_epochs() -> None:
    storage = MemoryStorage()
    for number in (100, 9, 10):
        storage.create(replace(RECORD, epoch=number).file, replace(RECORD, epoch=number).to_bytes())
    first, second = replace(FAILED, epoch=10), replace(FAILED, epoch=10, opened=FAILED.opened + 5)
    for one in (second, first):
        storage.create(one.file, one.to_bytes())
    assert epochs(storage) == [(9, "complete"), (10, "failed"), (10, "failed"), (10, "complete"), (100, "complete")]
    assert records(storage)[1:3] == [first, second]


def test_the_newest_are_kept_and_strange_files_left_alone() -> None:
    storage = MemoryStorage()
    storage.create("checkpoints/notes.txt", b"mine")
    for number in range(12):
        for one in (replace(RECORD, epoch=number), replace(FAILED, epoch=number)):
            storage.create(one.file, one.to_bytes())
    tidy(storage, 3)
    assert epochs(storage) == [(n, outcome) for n in (9, 10, 11) for outcome in ("failed", "complete")]
    assert storage.read("checkpoints/notes.txt") == b"mine"


# Alignment's arithmetic


def test_the_last_to_reach_its_cut_is_the_slowest_and_the_others_wait_for_it() -> None:
    found = Alignment.of(CUTS)
    assert [(one.partition, one.waited_ms) for one in found.partitions] == [
        ("orders-1", 0.0),
        ("orders-2", 797.0),
        ("orders-0", 902.0),
    ]
    assert (found.slowest, found.skew, found.more, found.unknown) == ("orders-1", 10.0, 0, None)


def test_a_partition_that_waited_for_a_core_is_last_without_being_skewed() -> None:
    found = Alignment.of(
        PartitionCut(f"t-{number}", "in", 10, number // 2 * 100.0, number // 2 * 100.0 + 100) for number in range(5)
    )
    assert (found.slowest, found.skew) == ("t-4", 1.0)


def test_of_two_partitions_the_slow_one_is_compared_with_the_other() -> None:
    assert Alignment.of([PartitionCut("a", "in", 1, 0, 10), PartitionCut("b", "in", 1, 0, 80)]).skew == 8.0


def test_no_partitions() -> None:
    assert Alignment.of([], unknown="why") == Alignment((), unknown="why")


def test_of_very_many_partitions_the_slowest_are_kept() -> None:
    found = Alignment.of(PartitionCut(f"t-{number}", "in", 1, 0, float(number)) for number in range(250))
    assert (len(found.partitions), found.more) == (100, 150)
    assert [found.partitions[0].partition, found.partitions[-1].partition] == ["t-249", "t-150"]
    assert found.skew == 2.01  # of the median of all, not of those that are kept


# Writing


class Gated(MemoryStorage):
    """Does not create before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.may = threading.Event(), threading.Event()

    def create(self, name: str, data: bytes) -> None:
        self.entered.set()
        assert self.may.wait(30)
        super().create(name, data)


def test_a_record_is_completed_before_it_is_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    reports: dict[int, dict[str, Any]] = {}
    heard: list[CheckpointRecord] = []
    asked, told = threading.Event(), threading.Event()

    def hear(record: CheckpointRecord) -> None:
        heard.append(record)
        told.set()

    def progress(epoch: int) -> dict[str, Any] | None:
        found = reports.get(epoch)
        if found is None:
            asked.set()
        return found

    recorder = Recorder(storage, progress=progress, recorded=hear)
    recorder.add(replace(RECORD, state=None, alignment=None), lambda: RECORD.alignment)
    assert asked.wait(30)  # it waits for the report …
    assert records(storage) == []
    operator = {"operatorName": "dedupe", "numRowsTotal": 5, "numRowsUpdated": 2, "memoryUsedBytes": 100}
    reports[12] = {"batchId": 12, "stateOperators": [operator]}
    assert told.wait(30)  # … and not for its own end
    recorder.close()
    [written] = records(storage)
    assert written.alignment == RECORD.alignment
    assert written.state == (OperatorState("dedupe", 5, 2, 0, 100, None, "hashmap", 0),)
    assert heard == [written]


def test_closing_writes_what_waits_without_waiting_for_reports() -> None:
    storage = MemoryStorage()
    recorder = Recorder(storage, progress=lambda epoch: None)
    for number in range(3):
        recorder.add(replace(RECORD, epoch=number, state=None))
    recorder.close()
    assert [(one.epoch, one.state) for one in records(storage)] == [(0, None), (1, None), (2, None)]


def test_a_report_that_will_not_come_is_not_waited_for() -> None:
    storage = MemoryStorage()
    asked: list[int] = []
    told = threading.Event()

    def progress(epoch: int) -> dict[str, Any]:
        asked.append(epoch)
        return {}

    recorder = Recorder(storage, progress=progress, recorded=lambda record: told.set())
    recorder.add(replace(RECORD, state=None))
    assert told.wait(30)
    recorder.close()
    assert records(storage)[0].state is None
    assert asked == [12]


def test_a_failed_attempt_has_no_report() -> None:
    storage = MemoryStorage()
    asked: list[int] = []
    recorder = Recorder(storage, progress=asked.append)
    recorder.add(FAILED)
    recorder.close()
    assert records(storage) == [FAILED]
    assert not asked


def test_an_epoch_carried_out_again_has_the_last_record_and_its_failures() -> None:
    storage = MemoryStorage()
    recorder = Recorder(storage)
    for one in (FAILED, RECORD, replace(RECORD, generation=8)):
        recorder.add(one)
    recorder.close()
    assert [(one.outcome, one.generation) for one in records(storage)] == [("failed", 7), ("complete", 8)]


def test_an_overload_drops_the_oldest_and_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    storage = Gated()
    recorder = Recorder(storage)
    recorder.add(replace(RECORD, epoch=0))
    assert storage.entered.wait(30)
    for number in range(1, 21):  # the first is stuck in the storage; eight may wait
        recorder.add(replace(RECORD, epoch=number))
    assert recorder.dropped == 12
    storage.may.set()
    recorder.close()
    assert [one.epoch for one in records(storage)] == [0, *range(13, 21)]
    assert caplog.text.count("faster than they can be written") == 1


def test_trouble_is_said_once_and_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStorage):
        def create(self, name: str, data: bytes) -> None:
            raise LedgerError("No space left.")

    def broken(*args: Any) -> Any:
        raise RuntimeError("no such method")

    heard: list[int] = []

    def deaf(record: CheckpointRecord) -> None:
        heard.append(record.epoch)
        raise ValueError("not again")

    recorder = Recorder(Full(), progress=broken, recorded=deaf)
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(5):
            recorder.add(replace(RECORD, epoch=number), broken)
        recorder.close()
    assert heard == list(range(5))
    assert [caplog.text.count(text) for text in ("No space left", "no such method", "not again")] == [1, 2, 1]


def test_records_are_tidied_now_and_then_not_each_time() -> None:
    class Counting(MemoryStorage):
        listings = 0

        def list(self, folder: str) -> list[str]:
            self.listings += 1
            return super().list(folder)

    storage = Counting()
    seen = threading.Semaphore(0)
    recorder = Recorder(storage, keep=5, recorded=lambda record: seen.release())
    for number in range(61):
        recorder.add(replace(RECORD, epoch=number))
        assert seen.acquire(timeout=30)
    recorder.close()
    assert storage.listings == 4
    assert [one.epoch for one in records(storage)] == [56, 57, 58, 59, 60]


def test_after_the_end_nothing_is_written() -> None:
    storage = MemoryStorage()
    recorder = Recorder(storage)
    recorder.add(RECORD)
    recorder.close()
    recorder.add(replace(RECORD, epoch=13))
    recorder.close()
    assert records(storage) == [RECORD]
