"""The clock of tests on a busy machine: who waits for a core is waited for, who is stuck is found."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

import pytest

from tests.support.own_time import OwnTime, Times, mine, share, times
from tests.support.waiting import until


class Machine:
    """Threads whose times the test sets."""

    def __init__(self) -> None:
        self.now, self.threads = 0.0, Times()
        self.own = OwnTime(lambda: [1], clock=lambda: self.now, read=self.read)

    def read(self, _: Iterable[int]) -> Times:
        return dict(self.threads)

    def go(self, seconds: int, *, ran: float, waited: float) -> float:
        """Each second a thread runs and waits that long."""
        for _ in range(seconds):
            self.now += 1.0
            before = self.threads.get((1, "1"), (0.0, 0.0))
            self.threads[1, "1"] = before[0] + ran, before[1] + waited
            self.own()
        return self.own()


def test_a_job_that_sleeps_by_its_own_will_has_all_of_the_time() -> None:
    assert Machine().go(60, ran=0.0, waited=0.0) == pytest.approx(60)


def test_a_job_on_a_calm_machine_has_all_of_the_time() -> None:
    assert Machine().go(60, ran=1.0, waited=0.0) == pytest.approx(60)


def test_of_a_job_that_stands_in_line_only_its_share_of_the_cores_counts() -> None:
    assert Machine().go(61, ran=0.1, waited=0.9) == pytest.approx(1 + 60 * 0.1)


def test_a_job_that_has_no_core_at_all_is_waited_for() -> None:
    assert Machine().go(61, ran=0.0, waited=1.0) == pytest.approx(1)


def test_threads_that_come_and_go_do_not_turn_the_clock_back() -> None:
    before = {(1, "1"): (50.0, 50.0), (1, "2"): (1.0, 0.0)}
    assert share(before, {(1, "2"): (2.0, 0.0), (2, "1"): (1.0, 1.0)}, 1.0) == pytest.approx(0.5)
    assert share(before, {}, 1.0) == 1.0


def test_the_process_that_gets_least_makes_the_pace() -> None:
    """Those that only wake up now and then are served first, and wait for the one that works."""
    after = {(1, "1"): (0.1, 0.0), (2, "1"): (0.2, 0.6), (2, "2"): (0.0, 0.0), (3, "1"): (0.0, 0.05)}
    assert share({}, after, 1.0) == pytest.approx(0.25)


def test_a_job_that_is_stuck_while_the_machine_is_busy_is_found() -> None:
    machine = Machine()
    machine.go(1, ran=0.0, waited=0.0)

    def never() -> bool:
        machine.go(1, ran=0.05, waited=0.95)
        return False

    with pytest.raises(AssertionError, match="still waiting for rows"):
        until(never, "rows", 10, every=0, clock=machine.own)
    assert 200 <= machine.now <= 204


def test_the_kernel_counts_the_threads_of_this_process() -> None:
    before, ended = times([os.getpid()]), threading.Event()
    busy = threading.Thread(target=lambda: ended.wait(30) or None)
    busy.start()
    while sum(ran for ran, _ in times([os.getpid()]).values()) <= sum(ran for ran, _ in before.values()):
        time.thread_time()
    assert len(times([os.getpid()])) > len(before)
    ended.set()
    busy.join()
    assert os.getpid() in mine()
