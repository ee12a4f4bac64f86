"""The lease in storage: one word after the other, each said by one only; and the format on disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.checkpoint.lease_log import LeaseLog, Standing, Word
from penstock.errors import LedgerCorrupt, LedgerError, LedgerFromTheFuture
from penstock.storage.local import LocalStorage
from tests.support.memory_storage import MemoryStorage

DATA = Path(__file__).parents[2] / "data" / "lease-v1.json"
FIRST = Word(1, 1, "a" * 32, "one", 10.0, written=5.0, began="a" * 32)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def words(storage: MemoryStorage) -> LeaseLog:
    return LeaseLog(storage, now=lambda: 5.0)


def test_the_newest_word_counts(words: LeaseLog) -> None:
    assert words.newest() is None
    assert words.say(FIRST)
    assert words.newest() == FIRST
    second = FIRST.follow(Standing.ENDED, "stopped")
    assert words.say(second)
    assert words.newest() == second


def test_a_word_is_said_also_where_old_ones_cannot_be_removed(
    words: LeaseLog, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder would lose its lease of a storage that only does not delete."""

    def refuse(name: str) -> None:
        raise LedgerError(f"The storage refused while deleting {name}.")

    monkeypatch.setattr(storage, "delete", refuse)
    word = FIRST
    for _ in range(30):
        assert words.say(word)
        word = word.follow(Standing.HELD)
    assert len(storage.list("lease")) == 30


def test_a_word_is_said_by_one_only(words: LeaseLog) -> None:
    """Whether it renews, takes over or gives back."""
    words.say(FIRST)
    assert words.say(Word(2, 2, "b" * 32, "two", 10.0))
    assert not words.say(FIRST.follow(Standing.HELD))
    assert not words.say(FIRST.follow(Standing.RELEASED))
    newest = words.newest()
    assert newest is not None
    assert newest.host == "two"


def test_of_many_at_once_one_has_it(tmp_path: Path) -> None:
    start, won = threading.Barrier(8), list[str]()

    def run(name: str) -> None:
        words = LeaseLog(LocalStorage(tmp_path))
        start.wait()
        if words.say(Word(1, 1, name, name, 10.0)):
            won.append(name)

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    newest = LeaseLog(LocalStorage(tmp_path)).newest()
    assert newest is not None
    assert won == [newest.holder]


def test_old_words_are_forgotten_and_their_numbers_are_not_free(words: LeaseLog, storage: MemoryStorage) -> None:
    """One who slept for so long that the word which took the lease from it is gone must not believe that it has it."""
    word = FIRST
    words.say(word)
    for _ in range(50):
        word = word.follow(Standing.HELD)
        assert words.say(word)
    assert len(storage.list("lease")) == 20
    assert not words.say(Word(2, 1, "sleeper", "three", 10.0))
    assert words.newest() == word
    assert words.say(word.follow(Standing.HELD))
    assert len(storage.list("lease")) == 20


def test_a_folder_that_has_lost_its_words_is_no_place_for_the_next(words: LeaseLog) -> None:
    with pytest.raises(LedgerError, match="lost what was in it"):
        words.say(Word(7, 1, "a", "one", 10.0))


def test_a_word_that_is_gone_before_it_is_read(words: LeaseLog, storage: MemoryStorage) -> None:
    """Listed, and forgotten because newer ones came; or not shown to everybody alike."""
    words.say(FIRST)
    storage.list = lambda folder: ["0000000009.json"]  # type: ignore[method-assign]
    with pytest.raises(LedgerError, match="listed and cannot be read"):
        words.newest()


def test_the_format_is_what_it_has_always_been(words: LeaseLog, storage: MemoryStorage) -> None:
    storage.create("lease/0000000001.json", DATA.read_bytes())
    assert words.newest() == FIRST
    other = MemoryStorage()
    LeaseLog(other, now=lambda: 5.0).say(FIRST)
    assert other.read("lease/0000000001.json") == DATA.read_bytes()


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (b'"version":1', b'"version":2', LedgerFromTheFuture),
        (b'"turn":1', b'"turn":9', LedgerCorrupt),
        (b"penstock/lease", b"penstock/claim", LedgerCorrupt),
    ],
)
def test_what_cannot_be_trusted(
    words: LeaseLog, storage: MemoryStorage, before: bytes, after: bytes, error: type[Exception]
) -> None:
    storage.create("lease/0000000001.json", DATA.read_bytes().replace(before, after))
    with pytest.raises(error):
        words.newest()
