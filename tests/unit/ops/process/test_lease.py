"""One driver's hold on the lease: waited for, renewed, lost, given back. The storage is the test's, and may be away;
so is the clock, where time has to pass."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.checkpoint.lease_log import LeaseLog, Standing, Word
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.config.resolve import resolve
from penstock.errors import JobStopped, LeaseLost, LedgerError, LedgerFromTheFuture, PenstockError, Superseded
from penstock.ops.process import lifeline
from penstock.ops.process.lease_holder import LeaseHolder, LeaseWatch
from penstock.ops.process.lease_rules import Verdict
from penstock.ops.process.lifeline import status_of
from penstock.ops.process.registry import expect_run
from penstock.ops.turn import JobLease, TurnEnd, held, settings_of_turn
from penstock.storage.local import LocalStorage
from tests.support.memory_storage import MemoryStorage

D = 600.0  # nothing runs out by itself


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shaky(MemoryStorage):
    """A storage that can be away."""

    away = False

    def list(self, folder: str) -> list[str]:
        self._refuse()
        return super().list(folder)

    def create(self, name: str, data: bytes) -> None:
        self._refuse()
        super().create(name, data)

    def _refuse(self) -> None:
        if self.away:
            raise LedgerError("The storage is away.")


class World:
    """Leases over one storage."""

    def __init__(self) -> None:
        self.storage, self.clock = Shaky(), Clock()
        self.words = LeaseLog(self.storage)
        self.lost: list[PenstockError] = []
        self.leases: list[LeaseHolder] = []

    def lease(self, me: str, seconds: float = D, clock: Callable[[], float] | None = None) -> LeaseHolder:
        made = LeaseHolder(self.words, me, f"host-{me}", seconds, lost=self.lost.append, clock=clock or self.clock)
        self.leases.append(made)
        return made

    def newest(self) -> Word:
        newest = self.words.newest()
        assert newest is not None
        return newest


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(lifeline, "_lease", {})
    world = World()
    yield world
    world.storage.away = False
    for lease in world.leases:
        lease.close(None)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_who_waits_takes_over_when_the_lease_has_run_out(world: World) -> None:
    first, second = world.lease("a"), world.lease("b")
    assert first.try_take() is Verdict.TAKE
    assert second.try_take() is Verdict.WAIT
    world.clock.now += D - 1
    assert second.try_take() is Verdict.WAIT
    world.clock.now += 1
    assert second.try_take() is Verdict.TAKE
    assert (world.newest().turn, world.newest().host) == (2, "host-b")
    assert first.is_lost()
    assert "host-b" in str(first.taken_error())


def test_a_holder_renews(world: World) -> None:
    lease = world.lease("a", 2.0, time.monotonic)
    assert lease.wait()
    until(lambda: world.newest().number >= 3)
    assert not world.lost
    assert world.newest().turn == 1


def test_a_holder_that_was_superseded_leaves(world: World) -> None:
    lease = world.lease("a", 3.0, time.monotonic)
    assert lease.wait()
    while not world.words.say(Word(world.newest().number + 1, 2, "b", "host-b", D)):
        pass
    until(lambda: world.lost)
    assert isinstance(world.lost[0], LeaseLost)
    assert "host-b" in str(world.lost[0])
    assert world.newest().holder == "b"


def test_a_holder_that_cannot_renew_leaves(world: World) -> None:
    lease = world.lease("a", 0.6, time.monotonic)
    assert lease.wait()
    world.storage.away = True
    until(lambda: world.lost)
    assert "could not be renewed" in str(world.lost[0])
    assert len(world.lost) == 1


def test_a_holder_whose_storage_hangs_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = world.lease("a", 0.6, time.monotonic)
    assert lease.wait()
    never = threading.Event()
    monkeypatch.setattr(world.words, "say", lambda word: never.wait(60))
    until(lambda: world.lost)
    assert "could not be renewed" in str(world.lost[0])
    never.set()


def test_who_waits_goes_on_waiting_while_the_storage_is_away(world: World) -> None:
    world.lease("a").try_take()
    second = world.lease("b")
    assert second.take_or_wait() is Verdict.WAIT
    world.storage.away = True
    world.clock.now += 2 * D
    assert second.take_or_wait() is Verdict.WAIT
    world.storage.away = False
    assert second.take_or_wait() is Verdict.TAKE


def test_what_cannot_be_understood_is_not_waited_for(world: World) -> None:
    newer = b'{"format":"penstock/lease","version":99,"sha256":"","body":{}}'
    world.storage.create("lease/0000000001.json", newer)
    with pytest.raises(LedgerFromTheFuture):
        world.lease("a").wait()


def test_a_word_that_seemed_to_fail_is_ones_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said after all, so the next attempt finds its number taken: by itself."""
    lease = world.lease("a")
    lease.try_take()
    world.words.say(world.newest().follow(Standing.HELD))
    assert lease._write(Standing.HELD)
    assert world.newest().number == 3


def test_it_is_given_back(world: World) -> None:
    for standing, verdict in ((Standing.RELEASED, Verdict.TAKE), (Standing.ENDED, Verdict.LEAVE)):
        first, second = world.lease("a"), world.lease("b")
        first.try_take()
        assert second.try_take() is Verdict.WAIT
        first.close(standing, "for a reason")
        assert (world.newest().standing, world.newest().reason) == (standing, "for a reason")
        assert second.try_take() is verdict
        second.close(Standing.RELEASED)


def test_a_storage_that_is_away_at_the_end_holds_nobody_up(world: World) -> None:
    lease = world.lease("a")
    lease.try_take()
    world.storage.away = True
    lease.close(Standing.RELEASED)
    world.storage.away = False
    assert world.newest().held


# What becomes of it when the job ends


@pytest.mark.parametrize(
    ("error", "supervised", "standing"),
    [
        (None, True, Standing.ENDED),
        (JobStopped("Stopped."), True, Standing.ENDED),
        (KeyboardInterrupt(), True, Standing.RELEASED),
        (TypeError("a mistake"), True, Standing.ENDED),
        (Superseded("By one that has no lease."), True, Standing.ENDED),
        (LedgerError("Away for a moment."), True, Standing.HELD),
        (LedgerError("Away for a moment."), False, Standing.RELEASED),
    ],
    ids=["done", "stopped", "interrupted", "failed", "superseded outside", "crashed", "crashed alone"],
)
def test_the_end_of_a_job(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    supervised: bool,
    standing: Standing,
) -> None:
    monkeypatch.setattr(lifeline, "connected", lambda: supervised)
    job = JobLease(world.words, D, warm=True)
    assert job.take_or_leave()
    if error is None:
        with held(job, lambda: TurnEnd.DONE):
            pass
    else:
        with pytest.raises(type(error)), held(job, lambda: TurnEnd.STOPPED):
            raise error
    assert world.newest().standing is standing


def test_a_run_that_was_superseded_by_the_lease_waits_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "connected", lambda: True)
    job = JobLease(world.words, D, warm=True)
    job.take_or_leave()
    with pytest.raises(LeaseLost) as lost, held(job, lambda: TurnEnd.DONE):
        world.words.say(Word(world.newest().number + 1, 2, "b", "host-b", D))
        raise Superseded("By generation 2.")
    assert status_of(lost.value) == lifeline.LOST_TURN
    assert world.newest().holder == "b"


@pytest.mark.parametrize(("reason", "status"), [(TurnEnd.STOPPED, 0), (TurnEnd.FAILED, 1)])
def test_a_job_that_has_ended_elsewhere_is_left(world: World, reason: TurnEnd, status: int) -> None:
    world.words.say(Word(1, 1, "a", "host-a", 0.0))
    world.words.say(Word(2, 1, "a", "host-a", 0.0, Standing.ENDED, reason))
    job = JobLease(world.words, D, warm=True)
    job.lease.learn(1)
    with pytest.raises(SystemExit) as left:
        job.wait()
    assert left.value.code == status


def test_a_driver_ends_where_its_supervisor_can_wait_alone(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "connected", lambda: True)
    folder = tmp_path_factory.mktemp("job")
    words = LeaseLog(LocalStorage(folder))
    words.say(Word(1, 1, "a", "host-a", D))
    with pytest.raises(SystemExit) as left:
        JobLease(words, D, warm=False).take_or_leave()
    assert left.value.code == lifeline.LOST_TURN
    assert not JobLease(words, D, warm=True).take_or_leave()
    clock = Clock()
    waiting = LeaseWatch(str(folder), "", 1, clock=clock)
    assert waiting.look()
    assert waiting.report == lifeline.LeaseReport(1, "host-a", here=False, path=str(folder))
    clock.now += D
    assert not waiting.look()
    assert waiting.expired == 1
    words.say(Word(2, 1, "a", "host-a", D, Standing.ENDED, "stopped"))
    assert not waiting.look()
    assert waiting.ended == ("host-a", "stopped")


def test_a_savepoint_to_start_from_is_for_who_begins_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"execution.state-recovery.path": "/savepoints/one"}))
    settings = resolve()
    assert settings_of_turn(None, settings) is settings
    jobs = []
    for me in ("a" * 32, "b" * 32):
        expect_run(me)
        jobs.append(JobLease(world.words, D, warm=True))
        assert jobs[-1].take_or_leave()
        jobs[-1].lease.close(Standing.RELEASED)
    assert settings_of_turn(jobs[0], settings) is settings
    assert settings_of_turn(jobs[1], settings).recovery.path is None
    assert jobs[0].take_or_leave()  # and the first goes on with what it has begun
    assert settings_of_turn(jobs[0], settings) is settings
