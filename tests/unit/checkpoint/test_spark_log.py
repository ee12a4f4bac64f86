"""Spark's own log: read as Spark writes it, completed only where that is no guess."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint import spark_log as module
from penstock.checkpoint.spark_log import END_OF_TIME, Barrier, Commit, LaneNote, SparkLog
from penstock.errors import LedgerCorrupt, LedgerFromTheFuture, Superseded
from penstock.storage.storage import AlreadyExists
from tests.support.memory_storage import MemoryStorage

# As PySpark 4.2.0 writes them.
CONF = {"spark.sql.streaming.stateStore.providerClass": "…", "spark.sql.shuffle.partitions": "2"}
METADATA = {"batchWatermarkMs": 1767225600000, "batchTimestampMs": 1767225612345, "conf": CONF}


def offsets(metadata: dict[str, object] | None = None, *positions: str) -> bytes:
    lines = ["v1", json.dumps(metadata or METADATA), *(positions or ('{"orders":{"0":12,"1":7}}',))]
    return "\n".join(lines).encode()


def commit(watermark: int = 0) -> bytes:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def log(storage: MemoryStorage) -> SparkLog:
    return SparkLog(storage)


def test_a_checkpoint_that_is_not_there_yet(log: SparkLog) -> None:
    assert log.query_id() is None
    assert log.next_epoch() == (0, False)
    assert log.barrier(0) is None
    assert log.committed_watermark(0) is None
    assert not log.finish(0, 0)


def test_which_epoch_comes_next(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("metadata", b'{"id":"6a1c"}')
    assert log.query_id() == "6a1c"
    storage.create("offsets/0", offsets())
    assert log.next_epoch() == (0, True)
    storage.create("commits/0", commit())
    assert log.next_epoch() == (1, False)
    for name in ("commits/9", "commits/10", "offsets/9", "offsets/10", "offsets/11"):
        storage.create(name, commit() if name.startswith("commits") else offsets())
    assert log.next_epoch() == (11, True)
    storage.create("offsets/.12.crc", b"")
    storage.create("offsets/12.tmp", b"")
    assert log.next_epoch() == (11, True)


def test_a_barrier(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets(None, '{"orders":{"0":12}}', "-", "7"))
    barrier = log.barrier(0)
    assert barrier is not None
    assert barrier.metadata == METADATA
    assert barrier.offsets == ({"orders": {"0": 12}}, None, 7)
    storage.create("offsets/1", offsets(None, '{"orders":{"0":12}}', "-", "8"))
    other = log.barrier(1)
    assert other is not None
    assert other.digest != barrier.digest


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n{", b"v1\n{}\n{half", b"\xff\xfe"])
def test_a_barrier_that_cannot_be_read(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("offsets/3", data)
    with pytest.raises(LedgerCorrupt, match="offsets/3 cannot be read"):
        log.barrier(3)


@pytest.mark.parametrize("data", [b"[]", b"{}"])
def test_metadata_that_cannot_be_read(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("metadata", data)
    with pytest.raises(LedgerCorrupt, match="metadata cannot be read"):
        log.query_id()


def test_finishing_writes_what_spark_would_have_written(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets())
    storage.create("commits/.0.crc", b"of a half-done write")
    assert log.finish(0, 1767225600000)
    assert storage.read("commits/0") == commit(1767225600000)
    assert storage.read("commits/.0.crc") is None
    assert log.committed_watermark(0) == 1767225600000
    assert log.next_epoch() == (1, False)


def test_a_commit_that_is_there_stays(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets())
    storage.create("commits/0", commit(5))
    assert log.finish(0, 7)
    assert log.committed_watermark(0) == 5


def test_finishing_without_a_watermark_would_be_a_guess(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets())
    assert not log.finish(0, None)
    assert storage.list("commits") == []


# As PySpark 4.2.0 writes them in format 2 of the state, without and with its setting for sinks that change.
IDS = {"0": [["2b1f"], ["90ad"]], "1": [["77c0", "e41d"], ["0d6a", "b3f2"]]}
SINKS = {
    "sink-0": {"sinkName": "sink-0", "commitOffset": "-", "providerName": "…", "apiVersion": "DSv1", "isActive": True}
}
WITH_IDS = (
    b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["2b1f"],["90ad"]],"1":[["77c0","e41d"],["0d6a","b3f2"]]}}'
)
WITH_SINKS = b'v3\n{"nextBatchWatermarkMs":7,"sinkMetadataMap":{"sink-0":{"sinkName":"sink-0","commitOffset":"-",' + (
    '"providerName":"…","apiVersion":"DSv1","isActive":true}}}'.encode()
)


@pytest.mark.parametrize(
    ("known", "data"),
    [
        (Commit(7), commit(7)),
        (Commit(7, {}), b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{}}'),
        (Commit(7, IDS), WITH_IDS),
        (Commit(7, None, SINKS), WITH_SINKS),
        (Commit(7, {}, {}), b'v3\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{},"sinkMetadataMap":{}}'),
    ],
)
def test_a_commit_of_every_version_is_read_and_written_to_the_byte(known: Commit, data: bytes) -> None:
    assert Commit.parse(data) == known
    assert json.loads(known.text().split("\n")[1]) == json.loads(data.split(b"\n")[1])
    assert known.text().encode() == data or "…" in data.decode()


@pytest.mark.parametrize(
    "data",
    [
        b'v2\n{"nextBatchWatermarkMs":7}',
        b'v1\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{}}',
        b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{},"sinkMetadataMap":{}}',
        b'v3\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{}}',
        b'v4\n{"nextBatchWatermarkMs":7}',
        b'v1\n{"nextBatchWatermarkMs":7,"more":1}',
        b'v1\n{"nextBatchWatermarkMs":"7"}',
        b"v2\n[]",
        b"v2\n7",
        b"",
    ],
)
def test_a_commit_with_anything_unknown_in_it_is_not_read(data: bytes) -> None:
    assert Commit.parse(data) is None


def test_finishing_in_format_2_takes_the_ids_of_the_state(storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets())
    assert not SparkLog(storage, state_format="2").finish(0, 7), "a decision without ids"
    assert SparkLog(storage, state_format="1").finish(0, 7, IDS), "what the epoch was run with counts"
    assert storage.read("commits/0") == WITH_IDS
    storage.create("offsets/1", offsets())
    assert not SparkLog(storage, state_format="1").finish(1, 8), "so does what the log was begun with"
    assert SparkLog(storage, state_format="1").newest_format() == "2"
    assert SparkLog(storage, state_format="1").no_ids(1) == {}
    storage.delete("commits/0")
    storage.create("commits/0", commit(7))
    assert not SparkLog(storage, state_format="2").finish(1, 8, IDS)
    assert SparkLog(storage, state_format="2").finish(1, 8)
    assert storage.read("commits/1") == commit(8)


def test_finishing_keeps_what_version_3_notes_of_sinks(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("commits/4", WITH_SINKS)
    storage.create("offsets/5", offsets())
    assert log.finish(5, 9)
    assert log.commit(5) == Commit(9, None, SINKS)


@pytest.mark.parametrize(
    "before", [b'v2\n{"nextBatchWatermarkMs":0}', b'v1\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}']
)
def test_so_would_a_log_whose_last_commit_is_of_another_format(
    log: SparkLog, storage: MemoryStorage, before: bytes
) -> None:
    storage.create("commits/0", before)
    storage.create("offsets/1", offsets())
    assert log.committed_watermark(0) is None
    assert not log.finish(1, 0)
    assert storage.list("commits") == ["0"]


def test_a_log_with_commits_alone_goes_on_after_them(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("commits/0", commit())
    assert log.next_epoch() == (1, False)


def test_line_ends_around_a_barrier_are_no_positions(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets(None, '{"a":1}', "X 7") + b"\n")
    with pytest.raises(LedgerCorrupt):
        log.barrier(0)
    storage.create("offsets/1", offsets(None, '{"a":1}', "7X") + b"\n")
    with pytest.raises(LedgerCorrupt):
        log.barrier(1)
    storage.create("offsets/2", offsets(None, '"ends with X"', "7") + b"\n\n")
    barrier = log.barrier(2)
    assert barrier is not None
    assert barrier.offsets == ("ends with X", 7)


def test_a_source_without_data_is_a_dash_and_nothing_less(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets(None, "", "7"))
    with pytest.raises(LedgerCorrupt):
        log.barrier(0)


def test_a_barrier_without_settings_is_of_the_format_the_session_has(storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets({"batchWatermarkMs": 0, "batchTimestampMs": 1}))
    assert not SparkLog(storage, state_format="2").finish(0, 0)
    assert SparkLog(storage, state_format="1").finish(0, 0)


@pytest.mark.parametrize("version", ["0", "10", "2"])
def test_any_state_format_but_the_first_is_unknown(storage: MemoryStorage, version: str) -> None:
    storage.create("offsets/0", offsets())
    assert not SparkLog(storage, state_format=version).finish(0, 0)


@pytest.mark.parametrize(
    "before",
    [
        b'v0\n{"nextBatchWatermarkMs":0}',
        b'v1\n{"nextBatchWatermarkMs":0}\n{}',
        b"v1\n{}",
    ],
)
def test_a_commit_of_any_other_shape_proves_nothing(log: SparkLog, storage: MemoryStorage, before: bytes) -> None:
    storage.create("commits/0", before)
    storage.create("offsets/1", offsets())
    assert log.committed_watermark(0) is None
    assert not log.finish(1, 0)


def test_a_commit_that_is_no_text_is_torn(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("commits/0", b'\xff\n{"nextBatchWatermarkMs":0}')
    assert log.committed_watermark(0) is None
    assert not log.has_commit(0)


def test_the_first_epoch_has_none_before_it(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("commits/-1", b"v2\n{}")
    storage.create("offsets/0", offsets())
    assert log.finish(0, 0)


def test_the_end_of_time_is_an_epoch_that_reads_nothing(log: SparkLog, storage: MemoryStorage) -> None:
    """The positions of the epoch before, every window closed; what Spark may have begun there is replaced."""
    storage.create("offsets/6", b"v9\n{}\n1")
    storage.create("offsets/7", offsets(None, '{"orders":{"0":12}}', "-", '"X"') + b"\n")
    storage.create("offsets/8", b"begun by Spark")
    storage.create("offsets/.8.crc", b"and its checksum")
    storage.create("metadata", b'{"id":"6a1c"}')
    log.end_of_time(8)
    assert storage.read("offsets/.8.crc") is None
    ended = (storage.read("offsets/8") or b"").decode().split("\n")
    told = json.loads(ended[1])
    assert told["conf"].pop("penstock.drain") == "6a1c"
    assert told == {**METADATA, "batchWatermarkMs": END_OF_TIME}
    assert log.drained(8)
    assert not log.drained(7)
    assert not log.drained(9)
    assert ":" + str(END_OF_TIME) + ',"batchTimestampMs":' in ended[1], "as Spark spells it, without blanks"
    assert [ended[0], *ended[2:]] == ["v1", '{"orders":{"0":12}}', "-", '"X"']
    assert log.next_epoch() == (8, True)


def test_the_end_of_time_needs_an_epoch_before_it(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/5", offsets())
    with pytest.raises(LedgerCorrupt, match="offsets/6 cannot be read"):
        log.end_of_time(7)
    assert storage.read("offsets/7") is None


@pytest.mark.parametrize("other", ["2b7e", "9f03"])
def test_the_end_of_time_of_another_query_is_not_a_drain_of_this_one(
    log: SparkLog, storage: MemoryStorage, other: str
) -> None:
    """A savepoint holds the barrier as it was, and the query that is started from it gets an id of its own."""
    storage.create("offsets/7", offsets())
    storage.create("metadata", b'{"id":"6a1c"}')
    log.end_of_time(8)
    restored = MemoryStorage()
    restored.create("metadata", f'{{"id":"{other}"}}'.encode())
    restored.create("offsets/8", storage.read("offsets/8") or b"")
    assert not SparkLog(restored).drained(8)


def test_the_end_of_time_after_a_barrier_without_settings(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/7", offsets({"batchWatermarkMs": 0, "batchTimestampMs": 1}))
    storage.create("metadata", b'{"id":"6a1c"}')
    assert not log.drained(7)
    log.end_of_time(8)
    assert log.drained(8)


@pytest.mark.parametrize("torn", [b"", b'v1\n{"batchWatermark'])
def test_a_torn_barrier_is_not_that_of_a_drain(log: SparkLog, storage: MemoryStorage, torn: bytes) -> None:
    storage.create("offsets/8", torn)
    assert not log.drained(8)


def test_the_newest_barrier_is_that_of_the_pending_epoch_or_of_the_last_complete_one(
    log: SparkLog, storage: MemoryStorage
) -> None:
    assert log.newest_barrier() is None
    for epoch in range(3):
        storage.create(f"offsets/{epoch}", offsets(None, str(epoch)))
        pending = log.newest_barrier()
        assert pending is not None
        assert pending.offsets == (epoch,)
        storage.create(f"commits/{epoch}", commit())
        assert log.newest_barrier() == pending


@pytest.mark.parametrize(
    ("data", "watermark"),
    [
        (commit(5), 5),
        (commit(5) + b"\n", 5),
        (b'v2\n{"nextBatchWatermarkMs":6,"stateUniqueIds":{}}', 6),
        (b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":"\xff"}}', None),
        (b'v1\n{"nextBatchWatermarkMs":', None),
        (b'\xff\n{"nextBatchWatermarkMs":8}', None),
        (b"v2\nnot JSON", None),
        (b"v2\n{}", None),
        (b"v2\n[]", None),
        (b'v2\n{"nextBatchWatermarkMs":null}', None),
        (b"", None),
    ],
)
def test_how_far_an_epoch_has_closed_windows_is_read_from_a_commit_of_any_format(
    log: SparkLog, storage: MemoryStorage, data: bytes, watermark: int | None
) -> None:
    storage.create("commits/3", data)
    assert log.closed_up_to(3) == watermark
    assert log.closed_up_to(2) is None


# After a power cut


TORN = [b"", b"\0" * 40, b"v1", b"v1\n", b'v1\n{"batchWatermark', b'v1\n{}\n{"orders":{"0":', b"\xff\xfe"]


@pytest.mark.parametrize("data", TORN)
def test_a_torn_barrier_counts_as_not_written(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("offsets/2", offsets())
    storage.create("commits/2", commit())
    storage.create("offsets/3", data)
    assert log.next_epoch() == (3, False)
    assert log.torn() == ["offsets/3"]
    assert log.damaged()
    log.remove_torn("offsets/3")
    assert not log.damaged()
    assert storage.list("offsets") == ["2"]


@pytest.mark.parametrize("data", TORN)
def test_a_torn_commit_counts_as_not_written(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("offsets/0", offsets())
    storage.create("commits/0", data)
    storage.create("commits/.0.crc", b"of what it was to be")
    assert log.next_epoch() == (0, True)
    assert log.damaged()
    assert log.finish(0, 7)
    assert storage.read("commits/0") == commit(7)
    assert storage.read("commits/.0.crc") is None


LEFT, RIGHT = '{"orders":{"0":12}}', '{"payments":{"0":7}}'
AT_THE_END_OF_A_LINE = [offsets(None)[: -len('\n{"orders":{"0":12,"1":7}}')], offsets(None, LEFT), offsets(None, "-")]


@pytest.mark.parametrize("newline", [b"", b"\n"])
@pytest.mark.parametrize("data", AT_THE_END_OF_A_LINE)
def test_a_barrier_without_the_positions_of_all_sources_is_torn(
    log: SparkLog, storage: MemoryStorage, data: bytes, newline: bytes
) -> None:
    """Spark would stop in every start: it has more sources than positions."""
    for epoch in (1, 2):
        storage.create(f"offsets/{epoch}", offsets(None, LEFT, RIGHT))
        storage.create(f"commits/{epoch}", commit())
    storage.create("offsets/3", data + newline)
    assert log.next_epoch() == (3, False)
    assert log.torn() == ["offsets/3"]
    log.remove_torn("offsets/3")
    assert storage.list("offsets") == ["1", "2"]
    storage.create("offsets/3", offsets(None, LEFT, RIGHT) + newline)
    assert (log.next_epoch(), log.torn()) == ((3, True), [])


@pytest.mark.parametrize("data", AT_THE_END_OF_A_LINE)
def test_of_the_first_barrier_the_program_knows_how_many_positions_it_has(storage: MemoryStorage, data: bytes) -> None:
    log = SparkLog(storage, positions=2)
    storage.create("offsets/0", data)
    assert (log.next_epoch(), log.torn()) == ((0, False), ["offsets/0"])
    log.remove_torn("offsets/0")
    storage.create("offsets/0", offsets(None, "-", RIGHT))
    assert (log.next_epoch(), log.torn()) == ((0, True), [])


def test_a_program_that_has_more_sources_now_makes_no_barrier_torn(storage: MemoryStorage) -> None:
    """It is refused; what its log holds stays."""
    log = SparkLog(storage, positions=2)
    for epoch in (0, 1):
        storage.create(f"offsets/{epoch}", offsets(None, LEFT))
    assert (log.next_epoch(), log.torn()) == ((1, True), [])


def test_a_torn_barrier_does_not_say_how_many_positions_there_are(storage: MemoryStorage) -> None:
    log = SparkLog(storage, positions=2)
    storage.create("offsets/0", b"v1")
    storage.create("offsets/1", offsets(None, LEFT))
    assert (log.next_epoch(), log.torn()) == ((0, False), ["offsets/0", "offsets/1"])
    storage.create("offsets/2", offsets(None, LEFT, RIGHT))
    assert log.next_epoch() == (2, True)


def test_a_file_of_another_version_is_not_taken_for_torn(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", b"v7\nwhatever\x00")
    assert (log.next_epoch(), log.torn()) == ((0, True), [])
    log.remove_torn("offsets/0")
    assert storage.list("offsets") == ["0"]


def test_a_commit_without_its_barrier_is_a_hole(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets())
    storage.create("commits/0", commit())
    assert not log.damaged()
    storage.create("commits/1", commit())
    assert log.next_epoch() == (2, False)
    assert log.damaged()


@pytest.mark.parametrize("data", [b"", b"{", b'{"id":"5cf6', b"\0" * 45])
def test_torn_metadata_is_no_metadata(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("metadata", data)
    assert log.query_id() is None
    assert log.torn() == ["metadata"]
    log.remove_torn("metadata")
    assert storage.read("metadata") is None


FILES = b'v1\n{"path":"file:///in/0.json","timestamp":1,"batchId":3}'
KAFKA = b'\0v1\n{"orders":{"0":17,"1":4}}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v",
        b"\0",
        b"\0v",
        b"\0v1",
        b"\0v1\n",
        KAFKA[:-2],
        FILES[:-1],
        FILES + b'\n{"pa',
        b'v1\n["pa',
        b"\0" * len(FILES),
    ],
)
def test_a_torn_note_of_a_source_is_no_note(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    """Spark would stop at it in every start."""
    storage.create("sources/0/2", FILES)
    storage.create("sources/0/3", data)
    barrier = log.parse_barrier(3, b'v1\n{}\n{"logOffset":3}')
    assert log.torn() == ["sources/0/3"]
    assert not log.notes_reach(barrier)
    log.remove_torn("sources/0/3")
    assert storage.list("sources/0") == ["2"]


@pytest.mark.parametrize(
    "data", [FILES, KAFKA, FILES + b"\n" + FILES[3:], b"v1", b"v1\n", b"v1\n17", b"v1\nno JSON", b"17", b"\xac\xed\0"]
)
def test_a_note_in_a_sources_own_format_is_whole(log: SparkLog, storage: MemoryStorage, data: bytes) -> None:
    storage.create("sources/0/3", data)
    assert log.torn() == []
    assert log.notes_reach(log.parse_barrier(3, b'v1\n{}\n{"logOffset":3}'))


def test_a_note_that_is_gone_by_the_time_it_is_read_is_not_torn(
    log: SparkLog, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("sources/0/3", b"")
    assert log.torn() == ["sources/0/3"]
    monkeypatch.setattr(storage, "read", lambda name: None)
    assert log.torn() == []


def test_the_notes_of_a_source_that_has_seen_no_file_yet_reach_its_position(log: SparkLog) -> None:
    assert log.notes_reach(Barrier("", {}, ({"logOffset": -1},)))
    assert not log.notes_reach(Barrier("", {}, ({"logOffset": 0},)))


class Syncing(MemoryStorage):
    def __init__(self, able: bool = True) -> None:
        super().__init__()
        self.able, self.synced = able, 0

    def sync(self) -> bool:
        self.synced += 1
        return self.able


def test_state_and_file_logs_are_synced_with_every_epoch_and_the_rest_once() -> None:
    kafka, files, stateful = Syncing(), Syncing(), Syncing()
    for storage in (kafka, files):
        storage.create("sources/0/0", b"")
    stateful.create("state/0/0/1.delta", b"")
    logs = {storage: SparkLog(storage) for storage in (kafka, files, stateful)}
    for epoch in range(3):
        for log in logs.values():
            log.sync()
        files.create(f"sources/0/{epoch + 1}", b"")
    assert (kafka.synced, files.synced, stateful.synced) == (1, 3, 3)


def test_storage_that_cannot_sync_is_asked_once() -> None:
    storage = Syncing(able=False)
    storage.create("state/0/0/1.delta", b"")
    log = SparkLog(storage)
    log.sync()
    log.sync()
    assert storage.synced == 1


# Torn files, one by one


def test_a_log_without_its_very_first_barrier_is_damaged(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("commits/0", commit())
    storage.create("offsets/1", offsets())
    assert log.next_epoch() == (1, True)
    assert log.damaged()
    storage.create("offsets/0", offsets())
    assert not log.damaged()


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (commit(5), True),
        (commit(5) + b"\n", True),
        (b"v0\nof a version that nobody knows", True),
        (b"v1\n{half", False),
        (WITH_IDS, True),
        (WITH_IDS[:-1], False),
        (WITH_SINKS[:60], False),
        (b"v1", False),
        (b"", False),
    ],
)
def test_a_commit_is_whole_or_counts_as_not_there(
    log: SparkLog, storage: MemoryStorage, data: bytes, whole: bool
) -> None:
    storage.create("commits/3", data)
    assert log.has_commit(3) is whole
    assert not log.has_commit(2)


@pytest.mark.parametrize("call", ["finish", "write_again the same", "remove_torn"])
def test_what_is_whole_stays_with_its_checksum(log: SparkLog, storage: MemoryStorage, call: str) -> None:
    storage.create("offsets/0", offsets())
    storage.create("commits/0", commit(5))
    if call != "remove_torn":
        storage.create("commits/.0.crc", b"of what is there")
    if call == "finish":
        assert log.finish(0, 7)
    elif call == "remove_torn":
        log.remove_torn("commits/0")
    else:
        log.write_again("commits/0", commit(5).decode())
    assert storage.read("commits/0") == commit(5)
    if call in ("finish", "write_again the same"):
        assert storage.read("commits/.0.crc") == b"of what is there"


def test_a_torn_note_of_the_querys_id_goes_with_its_checksum(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("metadata", b"")
    storage.create(".metadata.crc", b"of what is lost")
    assert log.torn() == ["metadata"]
    log.remove_torn("metadata")
    assert storage.read("metadata") is None
    assert storage.read(".metadata.crc") is None


def test_of_a_spark_that_nobody_has_tried_an_example_is_needed(storage: MemoryStorage) -> None:
    untried = SparkLog(storage, known=False)
    storage.create("offsets/0", offsets())
    assert not untried.finish(0, 0), "its first commit would be a guess"
    storage.create("commits/0", commit())
    storage.create("offsets/1", offsets())
    assert untried.finish(1, 5)
    assert untried.committed_watermark(1) == 5


def test_the_notes_of_a_barrier_are_those_of_its_file_sources(log: SparkLog, storage: MemoryStorage) -> None:
    names = ["sources/0/7", "sources/1/8", "sources/1/9", "sources/2/10.compact", "sources/3/0", "sources/4/1"]
    for name in [*names, "sources/5/1"]:
        storage.create(name, f"v1\n{name}".encode())
    offsets = [{"t": {"0": 7}}, {"logOffset": 8}, {"logOffset": 10}, None, {}, {"logOffset": 1, "t": 1}]
    offsets += [{"logOffset": 5}]
    wanted = ["sources/1/8", "sources/2/10.compact"]
    assert log.notes(Barrier("", {}, tuple(offsets))) == {name: f"v1\n{name}" for name in wanted}
    assert log.read("sources/1/9") == "v1\nsources/1/9"
    assert log.read("sources/9/9") is None
    storage.create("sources/9/9", b"v1\n\xff")
    assert log.read("sources/9/9") == "v1\n\ufffd", "it is to be compared, and need not make sense"


def test_a_file_that_comes_back_while_it_is_written_again_is_no_error(
    log: SparkLog, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(name: str, data: bytes) -> None:
        raise AlreadyExists(name)

    storage.create("commits/0", b"")
    monkeypatch.setattr(storage, "create", exists)
    log.write_again("commits/0", commit(5).decode())


def test_two_barriers_are_one_where_they_cut_at_the_same_place_and_time() -> None:
    one = Barrier("a", {"batchWatermarkMs": 1, "batchTimestampMs": 2, "conf": {}}, ({"t": 1}, None))
    assert one.cut == Barrier("b", {**one.metadata, "conf": {"newer": "1"}}, one.offsets, "x", {"y": "z"}).cut
    for other in (
        Barrier("a", {**one.metadata, "batchWatermarkMs": 2}, one.offsets),
        Barrier("a", {**one.metadata, "batchTimestampMs": 3}, one.offsets),
        Barrier("a", one.metadata, ({"t": 2}, None)),
    ):
        assert one.cut != other.cut


# What a query of its own lanes writes


LANES = LaneNote("6a1c", {"orders": "id"}, {"orders:0": [3, 77]}, {"orders:1": [9, 0, 0]}, closed=True)


def written(storage: MemoryStorage, epoch: int, text: str) -> None:
    storage.create(f"offsets/{epoch}", text.encode())


def test_the_first_barrier_has_the_settings_of_the_session_and_the_positions(
    log: SparkLog, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 1767225612.3456))
    text = log.cut_at(0, [{"orders": {"0": 12}}, None], CONF, None)
    assert text.encode() == offsets({"batchWatermarkMs": 0, "batchTimestampMs": 1767225612346, "conf": CONF},
        '{"orders":{"0":12}}', "-").replace(b": ", b":").replace(b", ", b",")  # fmt: skip
    assert storage.list("offsets") == [], "nothing is written"


def test_a_later_barrier_has_the_settings_and_the_watermark_of_the_epoch_before(
    log: SparkLog, storage: MemoryStorage
) -> None:
    written(storage, 0, log.cut_at(0, [1], CONF, LANES))
    storage.create("metadata", b'{"id":"6a1c"}')
    storage.create("commits/0", commit(7))
    log.end_of_time(1)
    storage.create("commits/1", commit(9))
    barrier = log.parse_barrier(2, log.cut_at(2, [2], {"other": "settings"}, None).encode())
    assert (barrier.metadata["conf"], barrier.metadata["batchWatermarkMs"]) == (CONF, 9)
    assert (barrier.lanes, barrier.drains) == (None, None), "neither the lanes nor the drain of an earlier epoch"
    storage.delete("commits/1")
    storage.create("offsets/9", b"v1\n{}\n1")
    barrier = log.parse_barrier(10, log.cut_at(10, [2], CONF, None).encode())
    assert (barrier.metadata["conf"], barrier.metadata["batchWatermarkMs"]) == ({}, 0)
    barrier = log.parse_barrier(5, log.cut_at(5, [2], CONF, None).encode())
    assert barrier.metadata["conf"] == CONF, "where the barrier before is gone"


def test_what_a_barrier_notes_of_its_lanes_is_read_again(log: SparkLog) -> None:
    barrier = log.parse_barrier(0, log.cut_at(0, [1], CONF, LANES).encode())
    assert barrier.lanes == LANES
    assert log.parse_barrier(0, b"v1\n{}\n1").lanes is None
    noted = barrier.metadata["conf"]["penstock.lanes"]
    assert json.loads(noted)["version"] == 1
    barrier.metadata["conf"]["penstock.lanes"] = noted.replace('"version":1', '"version":2')
    with pytest.raises(LedgerFromTheFuture, match=r"^A barrier's note of its lanes has version 2"):
        _ = barrier.lanes


def test_the_oldest_barrier_is_the_one_with_the_lowest_number(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/9", offsets(None, "1", "2"))
    storage.create("offsets/10", offsets(None, "3"))
    assert log.torn() == ["offsets/10"]


def test_a_line_end_after_the_oldest_barrier_is_no_position(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("offsets/0", offsets(None, "1", "2") + b"\n")
    storage.create("offsets/1", offsets(None, "3", "4"))
    assert log.torn() == []


def test_the_newest_complete_barrier(log: SparkLog, storage: MemoryStorage) -> None:
    seen: list[Any] = []
    for epoch in range(2):
        for name, data in ((f"offsets/{epoch}", offsets(None, str(epoch))), (f"commits/{epoch}", commit())):
            storage.create(name, data)
            newest = log.newest_complete()
            seen.append(newest and newest.offsets)
    assert seen == [None, (0,), (0,), (1,)], "the next one is under way until it has its commit"


def test_an_id_is_given_once_in_sparks_own_format(log: SparkLog, storage: MemoryStorage) -> None:
    given = log.give_id()
    assert str(uuid.UUID(given)) == given
    assert storage.read("metadata") == f'{{"id":"{given}"}}'.encode()
    assert log.give_id() == SparkLog(storage).give_id() == given


def test_of_two_that_give_an_id_at_once_the_first_counts(
    log: SparkLog, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(name: str, data: bytes) -> None:
        MemoryStorage.create(storage, name, b'{"id":"first"}')
        MemoryStorage.create(storage, name, data)

    monkeypatch.setattr(storage, "create", late)
    assert log.give_id() == "first"


def test_the_id_that_the_ledger_knows_counts_whatever_sparks_note_says(log: SparkLog, storage: MemoryStorage) -> None:
    storage.create("metadata", b'{"id":"another"}')
    assert log.query_id() == "another"
    log.belongs_to("6a1c")
    assert log.query_id() == "6a1c"


@pytest.mark.parametrize("barrier", [True, False])
def test_a_log_is_begun_anew_only_by_the_newest_run(log: SparkLog, storage: MemoryStorage, barrier: bool) -> None:
    for name in ("state/0/0/1.delta", "commits/.0.crc", *(["offsets/0"] if barrier else ["offsets/.0.crc"])):
        storage.create(name, offsets())
    before = storage.sizes()

    def superseded() -> None:
        raise Superseded("A newer run has registered.")

    with pytest.raises(Superseded):
        log.begin_anew(superseded)
    assert storage.sizes() == before
    assert log.begin_anew(lambda: None) == (["state"] if barrier else ["state", "offsets", "commits"])
