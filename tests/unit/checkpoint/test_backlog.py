"""The backlog of one sink: what is recorded once, marked before it is forgotten, and never delivered again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight import Backlog, Entry, drained_up_to, log_of, with_prepared
from penstock.checkpoint.layout import seal, unseal
from penstock.errors import LedgerCorrupt
from penstock.storage.storage import AlreadyExists
from tests.support.memory_storage import MemoryStorage

FOLDER = "id/out"


class Place:
    """A checkpoint in memory, and log files in a folder."""

    def __init__(self, logs: Path) -> None:
        self.storage, self.logs = MemoryStorage("memory:job"), logs
        logs.mkdir()

    def backlog(self) -> Backlog:
        return Backlog(self.storage, FOLDER, str(self.logs))

    def log(self, epoch: int, generation: int = 3, writer: int = 0, **prepared: Any) -> Committable:
        name = f"{epoch:010d}.g{generation:08d}.a1.p{writer}.t0.arrow"
        (self.logs / name).write_bytes(b"1234567")
        payload = {"log": {"name": name, "bytes": 7, "crc": 9}, "prepared": prepared or None}
        return Committable("out", writer, 5, 77, payload)

    def files(self) -> list[str]:
        return sorted(path.name[:19] for path in self.logs.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "logs")


# One committable


@pytest.mark.parametrize(
    ("payload", "logged"),
    [
        ({"log": {}, "prepared": None}, True),
        ({"log": {}}, False),
        ({"prepared": None}, False),
        ({}, False),
        ({"log": {}, "prepared": None, "more": 1}, False),
    ],
)
def test_what_went_by_the_log_is_told_by_its_payload(payload: dict[str, Any], logged: bool) -> None:
    assert Committable("out", 0, 5, 77, payload).logged is logged


def test_what_the_sink_confirmed_stands_beside_the_log(place: Place) -> None:
    one = place.log(1)
    sealed = Committable("out", 0, 5, 77, {"name": "a", "sealed": True})
    both = with_prepared(one, sealed)
    assert both.at_sink == sealed
    assert log_of(both) == log_of(one)
    assert with_prepared(both, None).at_sink is None


def test_an_entry_is_as_large_as_its_logs(place: Place) -> None:
    entry = Entry(1, (place.log(1), place.log(1, writer=1, name="a")))
    assert entry.bytes == 14
    assert [one.payload for one in entry.prepared] == [{"name": "a"}]


def test_whether_a_log_file_is_there_is_seen(place: Place) -> None:
    one, other = place.log(1), place.log(2)
    backlog = place.backlog()
    backlog.remove_logs([log_of(other).name])
    assert [backlog.has_log(one), backlog.has_log(other)] == [True, False]


# Recording


def test_an_epoch_is_recorded_once(place: Place) -> None:
    backlog, one = place.backlog(), place.log(5)
    assert backlog.drained == -1
    assert backlog.record(5, [one]) is True
    assert backlog.record(5, [one]) is False
    assert (backlog.count, backlog.bytes, backlog.first()) == (1, 7, Entry(5, (one,)))
    body = unseal("backlog", place.storage.read(f"{FOLDER}/backlog/0000000005.json") or b"", "here")
    assert body["epoch"] == 5
    assert place.backlog().entries() == (Entry(5, (one,)),), "the next run finds it"


def test_the_first_epoch_of_all_is_recorded_like_any_other(place: Place) -> None:
    backlog = place.backlog()
    assert backlog.record(0, [place.log(0)]) is True
    assert backlog.count == 1


def test_what_another_run_recorded_is_what_is_delivered(place: Place) -> None:
    mine, theirs = place.log(5, generation=4), place.log(5, generation=3)
    backlog, other = place.backlog(), place.backlog()
    other.record(5, [theirs])
    assert backlog.record(5, [mine]) is False
    assert backlog.entries() == (Entry(5, (theirs,)),)


def test_a_record_that_goes_while_it_is_made_is_taken_as_it_was_given(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog, mine = place.backlog(), place.log(5)

    def exists(name: str, data: bytes) -> None:
        raise AlreadyExists(name)

    monkeypatch.setattr(place.storage, "create", exists)
    assert backlog.record(5, [mine]) is False
    assert backlog.entries() == (Entry(5, (mine,)),)


@pytest.mark.parametrize("epoch", [3, 4, 5])
def test_what_is_delivered_is_not_recorded_again(place: Place, epoch: int) -> None:
    backlog = place.backlog()
    backlog.mark(5)
    assert backlog.record(epoch, [place.log(epoch)]) is False
    assert backlog.count == 0
    assert place.storage.list(f"{FOLDER}/backlog") == []
    assert backlog.record(6, [place.log(6)]) is True


def test_epochs_are_delivered_in_order(place: Place) -> None:
    backlog = place.backlog()
    for epoch in (12, 9, 10):
        backlog.record(epoch, [place.log(epoch)])
    assert [entry.epoch for entry in backlog.entries()] == [9, 10, 12]
    first = backlog.first()
    assert first is not None
    assert first.epoch == 9


def test_a_damaged_record_is_named(place: Place) -> None:
    place.storage.create(f"{FOLDER}/backlog/0000000005.json", b"{half")
    with pytest.raises(LedgerCorrupt, match=r"memory:job/id/out/backlog/0000000005\.json"):
        place.backlog()


def test_other_files_are_left_alone(place: Place) -> None:
    place.storage.create(f"{FOLDER}/backlog/readme.json", b"theirs")
    place.storage.create(f"{FOLDER}/drained/readme.json", b"theirs")
    assert place.backlog().count == 0


# Marking and forgetting


def test_a_mark_is_a_sealed_file_and_never_goes_back(place: Place) -> None:
    backlog = place.backlog()
    backlog.mark(5)
    backlog.mark(5)
    backlog.mark(3)
    assert backlog.drained == 5
    body = unseal("drained", place.storage.read(f"{FOLDER}/drained/0000000005.json") or b"", "here")
    assert body == {"epoch": 5}
    assert place.backlog().drained == 5


def test_what_is_forgotten_leaves_its_mark_alone(place: Place) -> None:
    backlog = place.backlog()
    for epoch in (4, 5, 6):
        backlog.record(epoch, [place.log(epoch), place.log(epoch, writer=1)])
    for epoch in (4, 5):
        backlog.mark(epoch)
        entry = backlog.first()
        assert entry is not None
        backlog.forget(entry)
    assert place.storage.list(f"{FOLDER}/drained") == ["0000000005.json"]
    assert place.storage.list(f"{FOLDER}/backlog") == ["0000000006.json"]
    assert place.files() == ["0000000006.g0000000"] * 2
    assert [entry.epoch for entry in backlog.entries()] == [6]
    backlog.forget(Entry(5, ()))  # twice is fine


def test_a_run_that_died_between_mark_and_forgetting_is_tidied_up(place: Place) -> None:
    before = place.backlog()
    for epoch in (4, 5, 6):
        before.record(epoch, [place.log(epoch)])
    before.mark(5)
    after = place.backlog()
    assert [entry.epoch for entry in after.entries()] == [6]
    assert place.storage.list(f"{FOLDER}/backlog") == ["0000000006.json"]
    assert place.files() == ["0000000006.g0000000"]


def test_a_record_that_goes_while_the_backlog_is_read_is_no_obstacle(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.storage.create(f"{FOLDER}/backlog/0000000005.json", seal("backlog", {"epoch": 5, "committables": []}))
    monkeypatch.setattr(place.storage, "read", lambda name: None)
    assert place.backlog().count == 0


# Waiting


@pytest.mark.parametrize("how", ["record", "forget", "wake"])
def test_whoever_waits_is_woken(place: Place, how: str) -> None:
    backlog = place.backlog()
    backlog.record(1, [place.log(1)])
    entry = backlog.first()
    assert entry is not None
    waiting, woken = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        backlog.wait(60)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    waiting.wait()
    calls = {
        "record": lambda n: backlog.record(n, [place.log(n)]),
        "forget": lambda n: backlog.forget(entry),
        "wake": lambda n: backlog.wake(),
    }
    for number in range(2, 1_000):
        calls[how](number)  # it may not be waiting yet
        if woken.wait(0.01):
            return
    pytest.fail("nobody was woken")


def test_a_wait_lasts(place: Place) -> None:
    backlog, over = place.backlog(), threading.Event()
    threading.Thread(target=lambda: (backlog.wait(60), over.set()), daemon=True).start()
    assert not over.wait(0.05)
    while not over.wait(0.01):
        backlog.wake()


# Strays


def test_logs_that_no_epoch_needs_are_removed(place: Place) -> None:
    backlog = place.backlog()
    waiting, kept = place.log(5), place.log(6)
    backlog.record(5, [waiting])
    place.log(7), place.log(7, generation=2), place.log(7, generation=4)
    (place.logs / "readme.txt").write_text("theirs")
    elsewhere = Committable("other", 0, 5, 77, {"name": "not logged"})
    backlog.remove_strays(3, [kept, elsewhere])
    assert sorted(path.name for path in place.logs.iterdir()) == sorted(
        [log_of(waiting).name, log_of(kept).name, "0000000007.g00000004.a1.p0.t0.arrow", "readme.txt"]
    )


def test_an_empty_backlog_has_no_first_and_its_wait_ends(place: Place) -> None:
    backlog = place.backlog()
    assert backlog.first() is None
    backlog.wait(0.001)


def test_whether_all_that_waits_is_prepared_at_the_sink(place: Place) -> None:
    backlog = place.backlog()
    assert backlog.at_sink
    backlog.record(1, [place.log(1, name="a"), place.log(1, writer=1, name="b")])
    assert backlog.at_sink
    backlog.record(2, [place.log(2, name="c"), place.log(2, writer=1)])
    assert [entry.at_sink for entry in backlog.entries()] == [True, False]
    assert not backlog.at_sink


# Reading it again


def listed_then(place: Place, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Right after the records were listed, something else happens."""
    real = place.storage.list

    def listing(folder: str) -> list[str]:
        found = real(folder)
        if folder == f"{FOLDER}/backlog":
            monkeypatch.setattr(place.storage, "list", real)
            then()
        return found

    monkeypatch.setattr(place.storage, "list", listing)


def test_what_another_run_has_recorded_and_delivered_since_is_seen(place: Place) -> None:
    old, new = place.backlog(), place.backlog()
    for epoch in (4, 5, 6):
        old.record(epoch, [place.log(epoch)])
    new.reload()
    assert [entry.epoch for entry in new.entries()] == [4, 5, 6]
    for entry in old.entries()[:2]:
        old.mark(entry.epoch)
        old.forget(entry)
    new.reload()
    assert [entry.epoch for entry in new.entries()] == [6]
    assert new.drained == 5


def test_what_this_process_records_while_it_reads_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place.backlog()
    own.record(4, [place.log(4)])
    listed_then(place, monkeypatch, lambda: own.record(5, [place.log(5)]))
    own.reload()
    assert [entry.epoch for entry in own.entries()] == [4, 5]


def test_what_another_run_delivers_while_it_is_read_does_not_wait(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = place.backlog(), place.backlog()
    old.record(4, [place.log(4)])
    new.reload()
    [entry] = old.entries()
    listed_then(place, monkeypatch, lambda: (old.mark(4), old.forget(entry)))
    new.reload()
    assert (new.entries(), new.drained) == ((), 4)


def test_a_record_that_is_made_again_after_its_mark_is_removed_with_its_log(place: Place) -> None:
    old, new = place.backlog(), place.backlog()
    new.mark(4)
    old.record(4, [place.log(4)])
    new.reload()
    assert new.entries() == ()
    assert place.files() == []
    assert place.storage.list(f"{FOLDER}/backlog") == []


def test_a_mark_that_is_missing_on_the_storage_is_not_unlearned(place: Place) -> None:
    own = place.backlog()
    own.mark(7)
    place.storage.delete(f"{FOLDER}/drained/0000000007.json")
    own.reload()
    assert own.drained == 7


def test_whoever_waits_is_woken_when_it_was_read_again(place: Place) -> None:
    own, woken = place.backlog(), threading.Event()

    def wait() -> None:
        own.wait(60)
        woken.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while not woken.is_set():
        own.reload()
        waiting.join(0.001)
    assert woken.is_set()


def test_where_nothing_is_marked_no_epoch_is_delivered(place: Place) -> None:
    assert drained_up_to(place.storage, FOLDER) == -1
    place.backlog().mark(3)
    assert drained_up_to(place.storage, FOLDER) == 3


def test_it_says_where_it_is(place: Place) -> None:
    assert place.backlog().location == "memory:job/id/out"
