"""Two drivers both think they created `offsets/N`: what is decided, and what the next start goes by, is what ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.spark_log import SparkLog
from penstock.engine.coordinator import Coordinator
from penstock.engine.positions import Positions
from penstock.engine.restarts import ErrorClass, classify
from penstock.errors import BarrierOverwritten, LedgerCorrupt, LedgerError, Superseded
from tests.support.memory_sink import MemorySink
from tests.support.memory_storage import MemoryStorage
from tests.support.small_spark import SmallSpark, barrier_text

ENDS = [8, 11, 40]  # of another driver's cut of an epoch: behind its start, in its middle, far beyond


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


class Raced(SmallSpark):
    """`after[name]` is done once Spark has created the file `name`."""

    after: dict[str, Callable[[], None]]

    def write(self, name: str, text: str) -> None:
        super().write(name, text)
        self.after.pop(name, lambda: None)()


@pytest.fixture
def query(tmp_path: Path) -> Raced:
    made = Raced(tmp_path, MemorySink(), numbers, job="shop")
    made.after = {}
    return made


def once(query: Raced, until: int) -> None:
    assert sorted(query.sink.visible) == list(range(until))  # type: ignore[attr-defined]


def overwrites(query: Raced, epoch: int, end: int) -> Callable[[], None]:
    return lambda: SmallSpark.write(query, f"offsets/{epoch}", barrier_text(end))


@pytest.mark.parametrize("end", ENDS)
def test_an_epoch_whose_barrier_another_driver_has_written_is_not_run_and_the_job_goes_on(
    query: Raced, end: int
) -> None:
    query.run(10)
    epoch = query.log.next_epoch()[0]
    query.after[f"offsets/{epoch}"] = overwrites(query, epoch, end)
    with pytest.raises(BarrierOverwritten, match=f"offsets/{epoch} is not what Spark runs") as raised:
        query.run(30)
    assert classify(raised.value) is ErrorClass.RETRY
    once(query, 10)
    if end == 8:  # no source goes back: let the other's cut be one that Spark could have made
        query.write(f"offsets/{epoch}", barrier_text(12))
    query.run(60)
    once(query, 60)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("complete", [True, False])
def test_a_barrier_that_is_overwritten_after_its_decision_is_restored_by_the_next_start(
    query: Raced, end: int, complete: bool
) -> None:
    """The driver that was superseded stood still between its look for the file and its rename."""
    query.run(10)
    newest = query.log.next_epoch()[0] - 1
    decided = query.position(newest)
    if not complete:
        (query.spark / f"commits/{newest}").unlink()
    overwrites(query, newest, end)()
    query.run(30)
    once(query, 30)
    assert query.position(newest) == decided


@pytest.mark.parametrize("end", ENDS)
def test_a_start_that_spark_made_from_an_overwritten_barrier_ends_before_its_first_epoch(
    query: Raced, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    query.run(10)
    newest, recover = query.log.next_epoch()[0] - 1, Coordinator.recover

    def recover_and_be_overwritten(coordinator: Coordinator) -> object:
        resume = recover(coordinator)
        overwrites(query, newest, end)()
        return resume

    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "recover", recover_and_be_overwritten)
        with pytest.raises(BarrierOverwritten, match=f"offsets/{newest} is not what Spark runs"):
            query.run(60)
    once(query, 10)
    query.run(60)
    once(query, 60)


def test_the_drop_in_that_recovers_in_its_first_epoch_restores_the_barrier_and_ends(query: Raced) -> None:
    """Spark has read the wrong one by then; the next start reads the right one."""
    query.run(10)
    newest = query.log.next_epoch()[0] - 1
    decided = query.position(newest)
    overwrites(query, newest, 40)()
    coordinator = query.coordinator()
    with pytest.raises(BarrierOverwritten):
        coordinator.recover(query_running=True)
    coordinator.close()
    assert query.position(newest) == decided
    query.run(30)
    once(query, 30)


def test_of_two_drivers_that_cut_an_epoch_at_once_one_is_superseded_and_no_row_is_lost_or_doubled(
    query: Raced,
) -> None:
    query.run(10)
    epoch = query.log.next_epoch()[0]
    old = query.coordinator()
    old.recover()

    def wakes() -> None:
        """The old driver renames its own cut over the newer one's, and calls its `foreachBatch`."""
        overwrites(query, epoch, 40)()
        with pytest.raises(Superseded):
            old(None, epoch)  # type: ignore[arg-type]

    query.after[f"offsets/{epoch}"] = wakes
    with pytest.raises(BarrierOverwritten):
        query.run(30)
    old.close()
    query.run(60)
    once(query, 60)


def written(text: str = "v1\n{}\n7") -> SparkLog:
    storage = MemoryStorage("memory:job/copy/spark")
    storage.create("metadata", b'{"id":"q"}')
    storage.create("offsets/5", text.encode())
    return SparkLog(storage)


def positions(log: SparkLog) -> Positions:
    return Positions("copy", Ledger(MemoryStorage()), log, None)


def test_an_epoch_without_a_barrier_is_of_another_checkpoint() -> None:
    with pytest.raises(LedgerError, match="query 'copy', but memory:job/copy/spark has no offsets/6"):
        positions(written()).barrier(6, drains=True)


def test_only_the_run_that_asked_for_a_drain_executes_its_barrier() -> None:
    log = written()
    log.end_of_time(6)
    with pytest.raises(LedgerError, match="barrier of epoch 6 of query 'copy'") as refused:
        positions(log).barrier(6)
    assert refused.value.retryable, "the next start removes it"
    assert positions(log).barrier(6, drains=True).drains == "q"
    assert positions(log).barrier(5).text == "v1\n{}\n7"


# What Spark holds in memory, held against the log and the ledger


class Memory:
    """A query whose epoch `n` reads up to `n`; `starts` and `ends` are what Spark believes of the one under way."""

    def __init__(self) -> None:
        storage = MemoryStorage("memory:job/copy/spark")
        storage.create("metadata", b'{"id":"q"}')
        for epoch in range(3, 8):
            storage.create(f"offsets/{epoch}", barrier_text(epoch).encode())
        self.storage, self.log = storage, SparkLog(storage)
        self.asked = 0  # for the start
        self.starts: str | None = None
        self.ends: str | None = None

    def starts_at(self) -> str | None:
        self.asked += 1
        return self.starts

    def ends_at(self) -> str | None:
        return self.ends


@pytest.fixture
def memory() -> Memory:
    return Memory()


def compared(memory: Memory) -> Positions:
    return Positions("copy", Ledger(MemoryStorage()), memory.log, memory)


def before(monkeypatch: pytest.MonkeyPatch, text: str | None, *, decided: bool = True) -> list[tuple[int, str | None]]:
    """The epoch before was decided with the barrier `text`. What is asked for is kept."""
    asked = []

    def completed(ledger: Ledger, epoch: int, query_id: str | None) -> SimpleNamespace | None:
        asked.append((epoch, query_id))
        return SimpleNamespace(file=text) if decided else None

    monkeypatch.setattr("penstock.engine.positions.completed", completed)
    return asked


def test_where_spark_started_is_asked_in_the_first_epoch_of_a_run_and_after_one_that_was_not_seen(
    memory: Memory,
) -> None:
    checked = compared(memory)
    for epoch, asked in ((4, 1), (5, 1), (6, 1), (6, 2), (4, 3), (7, 4)):
        checked.barrier(epoch)
        assert memory.asked == asked


def test_the_very_first_epoch_starts_at_nothing_that_could_be_overwritten(memory: Memory) -> None:
    memory.storage.create("offsets/0", barrier_text(0).encode())
    compared(memory).barrier(0)
    assert memory.asked == 0


def test_an_epoch_that_was_refused_is_not_followed_by_the_next(memory: Memory) -> None:
    checked = compared(memory)
    memory.ends = barrier_text(40)
    with pytest.raises(BarrierOverwritten, match="offsets/4"):
        checked.barrier(4)
    memory.ends = None
    checked.barrier(5)
    assert memory.asked == 2


def test_a_start_at_other_positions_than_were_decided_is_refused(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = before(monkeypatch, barrier_text(3))
    memory.starts = barrier_text(3, watermark=9)
    compared(memory).barrier(4)
    assert asked == [(3, "q")]
    memory.starts = barrier_text(2)
    with pytest.raises(BarrierOverwritten, match="offsets/3"):
        compared(memory).barrier(4)


@pytest.mark.parametrize("decided", [True, False])
def test_a_start_after_an_epoch_whose_barrier_the_ledger_does_not_have_is_believed(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    before(monkeypatch, None, decided=decided)
    memory.starts = barrier_text(2)
    assert compared(memory).barrier(4).text == barrier_text(4)


def test_what_cannot_be_read_is_named_by_its_epoch(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.ends = "v1"
    with pytest.raises(LedgerCorrupt, match="offsets/4 cannot"):
        compared(memory).barrier(4)
    memory.starts = "v1"
    before(monkeypatch, barrier_text(3))
    with pytest.raises(LedgerCorrupt, match="offsets/3 cannot"):
        compared(memory).barrier(4)
    memory.starts = barrier_text(3)
    before(monkeypatch, "v1")
    with pytest.raises(LedgerCorrupt, match="offsets/3 cannot"):
        compared(memory).barrier(4)


def test_a_barrier_comes_with_the_notes_of_sources_that_read_files(memory: Memory) -> None:
    memory.storage.create("offsets/8", b'v1\n{}\n{"logOffset":2}')
    memory.storage.create("sources/0/2", b"v1\nthe files")
    assert compared(memory).barrier(8).notes == {"sources/0/2": "v1\nthe files"}
