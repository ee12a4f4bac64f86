"""The in-flight log without Spark: its files, the tee, the backlog, and the drainer through crashes and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight import Backlog, LogFile, LogWriter, log_of, read_log
from penstock.checkpoint.ledger import Ledger
from penstock.config import Checkpoints
from penstock.engine.attempt import Gate
from penstock.engine.inflight import InFlight
from penstock.engine.task import Route, Writing, committable, write_rows
from penstock.errors import JobStopped, LedgerCorrupt, LedgerFromTheFuture, UidChanged
from penstock.events import Events
from penstock.failpoints import POINTS, InjectedFault, hooked
from penstock.storage.local import LocalStorage
from tests.support.inflight_world import World, batch, rows, scope
from tests.support.memory_sink import MemorySink

DATA = Path(__file__).parents[2] / "data"


# Log files


def logged(folder: Path, *batches: pa.RecordBatch) -> LogFile:
    writer = LogWriter(str(folder), "one.arrow", batches[0].schema)
    for one in batches:
        writer.write(one)
    return writer.close()


def test_what_is_logged_is_read_again(tmp_path: Path) -> None:
    file = logged(tmp_path, batch(1, 2), batch(3))
    assert file.bytes == (tmp_path / "one.arrow").stat().st_size
    assert [one.column(0).to_pylist() for one in read_log(str(tmp_path), file)] == [rows(1, 2), rows(3)]


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: data[:60] + b"!" + data[61:], lambda _: None])
def test_a_file_that_is_not_the_decided_one_delivers_nothing(tmp_path: Path, harm: Callable[[bytes], Any]) -> None:
    file = logged(tmp_path, batch(1, 2))
    path = tmp_path / "one.arrow"
    harmed = harm(path.read_bytes())
    path.unlink()
    if harmed is not None:
        path.write_bytes(harmed)
    with pytest.raises(LedgerCorrupt):
        next(iter(read_log(str(tmp_path), file)))


def test_a_log_of_version_1_is_read() -> None:
    file = LogFile("inflight-v1.arrow", 936, 1145458272)
    assert [one.column(0).to_pylist() for one in read_log(str(DATA), file)] == [rows(1, 2), rows(3)]


def test_a_log_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.checkpoint.inflight.INFLIGHT_VERSION", 2)
    file = logged(tmp_path, batch(1))
    monkeypatch.undo()
    with pytest.raises(LedgerFromTheFuture):
        next(iter(read_log(str(tmp_path), file)))


# The tee, in a task


def teed(sink: MemorySink, folder: Path, *batches: pa.RecordBatch, seconds: float = 60.0) -> Committable:

    told = write_rows(sink, scope(), iter(batches), Writing(Route.TEE, str(folder), seconds))
    return committable("out", told)


def test_a_sink_that_keeps_up_prepares_and_the_log_is_whole(tmp_path: Path) -> None:
    sink = MemorySink()
    one = teed(sink, tmp_path, batch(1), batch(2, 3))
    assert one.logged
    assert sink.prepared.keys() == {one.at_sink.payload["name"]}  # type: ignore[union-attr]
    assert [part.column(0).to_pylist() for part in read_log(str(tmp_path), log_of(one))] == [rows(1), rows(2, 3)]


def test_a_sink_that_blocks_is_left_behind_and_aborts_when_it_wakes(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.open.clear()
    one = teed(sink, tmp_path, *(batch(number) for number in range(20)), seconds=0.05)
    assert one.at_sink is None
    assert one.rows == 20
    assert sum(part.num_rows for part in read_log(str(tmp_path), log_of(one))) == 20
    sink.open.set()
    for thread in threading.enumerate():
        if thread.name == "penstock-side-writer":
            thread.join()
    assert not sink.prepared


def test_a_sink_that_refuses_for_now_goes_by_the_log(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.away = True
    assert teed(sink, tmp_path, batch(1)).at_sink is None


# The backlog and its delivery


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_logged_epochs_are_delivered_in_order_and_the_log_is_removed(world: World) -> None:
    driver = world.driver()
    for epoch in range(4):
        world.epoch(driver, epoch, epoch * 10, epoch * 10 + 1)
    assert (driver.pending, world.sink.visible) == (4, [])
    assert driver.writing("out", 0.0).route is Route.LOG, "later epochs queue behind"
    assert world.drained(driver) == rows(0, 1, 10, 11, 20, 21, 30, 31)
    assert not list(world.folder.rglob("*.arrow"))
    assert not list(world.folder.glob("id/out/backlog/*"))
    assert driver.writing("out", 0.0).route is Route.TEE


def test_an_epoch_in_the_log_tells_whether_it_waited_for_the_sink_or_queued(world: World) -> None:
    driver = world.driver()
    assert driver.writing("out", 90.0).route is Route.LOG, "the sink had its 60 seconds"
    one = teed(world.sink, world.folder, batch(1))
    driver.commit(0, [one], lambda *_: {})
    world.epoch(driver, 1, 2)
    after = world.driver()
    after.commit(2, [one], lambda *_: {})
    waited, queued, recovered = [event for event in world.events if event["event"] == "logged"]
    assert (waited["behind"], 90 <= waited["seconds"] < 150) == (False, True)
    assert (queued["behind"], 0 <= queued["seconds"] < 60) == (True, True)
    assert (recovered["behind"], recovered["seconds"]) == (False, None)


def test_what_the_sink_had_prepared_is_committed_not_written_again(world: World) -> None:
    driver = world.driver()
    world.epoch(driver, 0, 1, 2, route=Route.TEE)
    assert world.drained(driver) == rows(1, 2)
    [told] = [event for event in world.events if event["event"] == "drained"]
    assert told["rewritten"] == 0


def test_what_the_sink_has_lost_is_written_again_from_the_log(world: World) -> None:
    driver = world.driver()
    world.epoch(driver, 0, 1, 2, route=Route.TEE)
    world.sink.lose()
    assert world.drained(driver) == rows(1, 2)


def test_a_sink_that_is_away_is_waited_for_and_nothing_is_lost_or_doubled(world: World) -> None:
    driver = world.driver()
    world.sink.away = True
    world.epoch(driver, 0, 1, route=Route.TEE)
    world.epoch(driver, 1, 2)
    driver.start()
    while not any(event["event"] == "drain_waiting" for event in world.events):
        driver.wait_empty(lambda: any(event["event"] == "drain_waiting" for event in world.events))
    world.sink.away = False
    assert world.drained(driver) == rows(1, 2)


@pytest.mark.parametrize("point", [name for name in POINTS if name.startswith("drain.")])
@pytest.mark.parametrize("route", [Route.LOG, Route.TEE])
def test_a_drainer_that_dies_anywhere_is_succeeded(world: World, point: str, route: Route) -> None:
    """The next driver delivers what is left, once."""

    class Death(BaseException):
        """Not an error that anybody handles."""

    def die() -> None:
        raise Death

    driver = world.driver()
    world.epoch(driver, 0, 1, 2, route=route)
    world.epoch(driver, 1, 3)
    with hooked(point, die):
        driver.start()
        driver.wait_empty(lambda: False)
    assert isinstance(driver.failure, Death)
    driver.close()
    after = world.driver()
    assert world.drained(after) == rows(1, 2, 3)
    assert not list(world.folder.rglob("*.arrow"))
    assert not world.sink.prepared


def test_a_drainer_that_waits_for_the_tasks_of_an_epoch_ends_when_it_is_told_to(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=False, aligned_timeout=0, max_concurrent=2)
    driver = world.driver()
    world.epoch(driver, 0, 1, route=Route.TEE)
    world.sink.lose()
    assert driver.writing("out", 0.0).route is Route.TEE, "its tasks write"
    driver.start()
    while not driver._turns["out"]._wanted:
        driver._backlogs["out"].wait(0.01)
    driver.close()
    assert world.sink.visible == [], "nothing was written beside the tasks"
    assert driver.pending == 1


def test_an_epoch_that_begins_while_the_drainer_waits_goes_by_the_log(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=False, aligned_timeout=0, max_concurrent=2)
    driver = world.driver()
    with driver._turns["out"].drainer(lambda: False) as mine:
        assert mine
        assert driver.writing("out", 0.0).route is Route.LOG
    assert driver.writing("out", 0.0).route is Route.TEE


def test_a_sink_without_rows_in_an_epoch_gives_its_turn_back(tmp_path: Path) -> None:
    world = World(tmp_path, unaligned=False, aligned_timeout=0, max_concurrent=2)
    driver = world.driver()
    assert driver.writing("out", 0.0).route is Route.TEE
    driver.sealed([], lambda own, _: own)
    with driver._turns["out"].drainer(lambda: True) as mine:
        assert mine


def test_an_error_on_the_way_is_tried_again_by_the_same_drainer(world: World) -> None:
    failures = iter([True, True])

    def fail() -> None:
        if next(failures, False):
            raise InjectedFault("Once more.")

    driver = world.driver()
    world.epoch(driver, 0, 1, 2)
    with hooked("drain.decided", fail):
        assert world.drained(driver) == rows(1, 2)


def test_a_record_made_again_after_its_delivery_is_not_delivered_again(world: World) -> None:
    driver = world.driver()
    one = world.epoch(driver, 5, 1)
    assert world.drained(driver) == rows(1)
    # A superseded run, or a recovery that repeats the commit, arrives late.
    assert driver.commit(5, [one], lambda *_: {})
    stale = Backlog(LocalStorage(world.folder), "id/out", str(world.folder / "id/out/logs"))
    stale._drained = -1
    stale.record(5, [one])
    after = world.driver()
    assert after.pending == 0
    assert world.drained(after) == rows(1)


def test_two_drivers_that_overlap_deliver_once(world: World) -> None:
    old = world.driver()
    world.epoch(old, 0, 1)
    world.epoch(old, 1, 2)
    arrived, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        go_on.wait()

    with hooked("drain.prepared", hold):
        old.start()
        assert arrived.wait(10)
    new = world.driver()
    assert world.drained(new) == rows(1, 2)
    go_on.set()
    old.wait_empty(lambda: old.failure is not None)
    assert type(old.failure).__name__ == "Superseded"
    assert world.sink.visible == rows(1, 2)


def test_the_log_has_a_limit_and_stopping_cuts_the_wait_short(tmp_path: Path) -> None:
    world = World(tmp_path, inflight_limit=1)
    world.sink.away = True
    driver = world.driver()
    gate = Gate("query")
    driver.wait_for_room(gate)
    world.epoch(driver, 0, 1)
    waiting = threading.Thread(target=lambda: _swallow(lambda: driver.wait_for_room(gate)))
    waiting.start()
    while not any(event["event"] == "throttled" for event in world.events):
        waiting.join(0.01)
        assert waiting.is_alive()
    gate.close()
    waiting.join(10)
    assert not waiting.is_alive()
    world.sink.away = False
    driver.wait_empty(lambda: False)
    driver.wait_for_room(Gate("query"))
    driver.close()


def _swallow(call: Callable[[], None]) -> None:
    with pytest.raises(JobStopped):
        call()


def test_turned_off_the_log_is_delivered_before_the_next_epoch(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.epoch(world.driver(), 0, 1)
    world.checkpoints = Checkpoints()
    driver = world.driver()
    driver.wait_for_room(Gate("query"))
    assert world.sink.visible == rows(1)
    assert driver.writing("out", 0.0).route is Route.SINK
    driver.close()


def test_a_sink_whose_rows_wait_cannot_be_left_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.epoch(world.driver(), 0, 1)
    after = InFlight(
        job="job", query="query", sinks={"other": MemorySink()}, location=str(tmp_path), storage=LocalStorage(tmp_path),
        ledger=Ledger(LocalStorage(tmp_path)), ledger_of=lambda where: Ledger(LocalStorage(Path(where))),
        events=Events(), checkpoints=Checkpoints(),
    )  # fmt: skip
    with pytest.raises(UidChanged, match="'out'"):
        after.open("id", 2)


@pytest.mark.parametrize(
    ("given", "elapsed", "route"),
    [
        ({"aligned_timeout": 0}, 0.0, Route.LOG),
        ({"unaligned": True, "aligned_timeout": 5}, 1.0, Route.TEE),
        ({"unaligned": True, "aligned_timeout": 5}, 6.0, Route.LOG),
        ({"unaligned": False, "aligned_timeout": 0, "max_concurrent": 2}, 0.0, Route.TEE),
        ({"unaligned": False, "aligned_timeout": 0}, 0.0, Route.SINK),
    ],
)
def test_which_way_rows_go(tmp_path: Path, given: dict[str, Any], elapsed: float, route: Route) -> None:
    assert World(tmp_path, **given).driver().writing("out", elapsed).route is route
