"""A storage that creates a generation and does not say so: the process that did it knows it for its own again."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.checkpoint.ledger import Ledger
from penstock.errors import LedgerError, Superseded
from penstock.storage.local import LocalStorage
from penstock.storage.storage import AlreadyExists
from tests.support.memory_sink import MemorySink
from tests.support.small_spark import SmallSpark


class Hiccup(LocalStorage):
    """Loses its answer to the next create of a generation."""

    lost = False

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        if self.lost and name.startswith("generations/"):
            raise LedgerError("The storage refused while writing: no answer in time.")


class Delayed(LocalStorage):
    """Creates the next generation only later, while the `before`th listing of generations since is under way."""

    before = 0
    pending: tuple[str, bytes] | None = None

    def create(self, name: str, data: bytes) -> None:
        if self.before and not self.pending and name.startswith("generations/"):
            self.pending = (name, data)
            raise LedgerError("The storage refused while writing: no answer in time.")
        super().create(name, data)

    def list(self, folder: str) -> list[str]:
        if folder == "generations" and self.pending:
            self.before -= 1
            if not self.before:
                pending, self.pending = self.pending, None
                with contextlib.suppress(AlreadyExists):
                    super().create(*pending)
        return super().list(folder)


class Process:
    """Starts its query again and again, as a job does in one process."""

    def __init__(self, folder: Path, run: str, sink: MemorySink) -> None:
        self.spark = SmallSpark(folder, sink, self._numbers, job="job")
        self.storage: Hiccup | Delayed = Hiccup(folder / "ledger")
        self.run, self.generation = run, 0

    @staticmethod
    def _numbers(first: int, last: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})

    def start(self, until: int, *, lost: bool = False) -> None:
        if isinstance(self.storage, Hiccup):
            self.storage.lost = lost
        coordinator = self.spark.coordinator(ledger=Ledger(self.storage), previous=self.generation, run=self.run)
        try:
            coordinator.recover()
            self.spark._query(coordinator, until)
        finally:
            self.generation = coordinator.generation
            coordinator.close()


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def process(tmp_path: Path, sink: MemorySink) -> Process:
    return Process(tmp_path, "m", sink)


@pytest.mark.parametrize("times", [1, 3])
def test_a_process_is_not_superseded_by_a_generation_that_it_registered_without_an_answer(
    process: Process, sink: MemorySink, times: int
) -> None:
    process.start(10)
    for _ in range(times):
        with pytest.raises(LedgerError, match="no answer"):
            process.start(20, lost=True)
    assert process.generation == 1, "as far as it knows"
    process.start(20)
    assert process.generation == 2 + times
    assert sorted(sink.visible) == list(range(20))


@pytest.mark.parametrize("before", range(1, 8))
def test_a_registration_that_arrives_while_the_process_starts_again_is_known_for_its_own(
    process: Process, sink: MemorySink, before: int
) -> None:
    """Found by the simulation: it arrived between two looks, of which the second took it for another run's."""
    process.start(10)
    process.storage = storage = Delayed(process.storage.root)
    storage.before = before
    with pytest.raises(LedgerError, match="no answer"):
        process.start(20)
    process.start(20)
    process.start(30)
    assert storage.pending is None
    assert sorted(sink.visible) == list(range(30))


@pytest.mark.parametrize("theirs", ["a", "z"])
def test_a_ghost_of_its_own_does_not_hide_the_run_that_took_over(
    process: Process, sink: MemorySink, tmp_path: Path, theirs: str
) -> None:
    process.start(10)
    with pytest.raises(LedgerError):
        process.start(20, lost=True)
    Process(tmp_path, theirs, sink).start(20)
    with pytest.raises(Superseded, match=r"Generation 1 .* by generation 3"):
        process.start(30)
    assert sorted(sink.visible) == list(range(20))


def test_a_first_start_without_an_answer_is_simply_made_again(process: Process, sink: MemorySink) -> None:
    with pytest.raises(LedgerError):
        process.start(10, lost=True)
    process.start(10)
    assert process.generation == 2
    assert sorted(sink.visible) == list(range(10))


def test_each_start_of_a_process_without_a_name_for_itself_has_one_of_its_own(process: Process) -> None:
    process.run = ""
    process.start(5)
    process.start(10)
    ledger = Ledger(process.storage)
    runs = [(ledger.generation(number) or {})["run"] for number in (1, 2)]
    assert len(set(runs)) == 2
    assert all(runs)
