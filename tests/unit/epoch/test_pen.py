"""A sink's pen: tasks and drainer never write at the same time, and whoever waits for it is woken."""

from __future__ import annotations

import threading

import pytest

from penstock.epoch.inflight.pen import Pen


def take(pen: Pen, given_up: threading.Event | None = None) -> tuple[threading.Thread, list[bool], threading.Event]:
    """A drainer that takes the pen, and holds it until it is told to let go."""
    got, let_go = list[bool](), threading.Event()

    def work() -> None:
        with pen.taken(given_up.is_set if given_up else lambda: False) as mine:
            got.append(mine)
            let_go.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, got, let_go


def test_where_no_task_writes_the_drainer_has_it_at_once() -> None:
    with Pen().taken(lambda: True) as mine:
        assert mine


def test_tasks_have_it_until_they_give_it_back() -> None:
    pen = Pen()
    assert pen.lend()
    assert pen.lend(), "the next epoch's tasks, while nobody else wants it"
    _, got, let_go = take(pen)
    while pen.lend():
        pass  # the drainer has not asked yet
    pen.give_back()
    while not got:
        pass
    assert got == [True]
    assert not pen.lend(), "the drainer has it"
    let_go.set()


@pytest.mark.parametrize("how", ["give_back", "wake"])
def test_a_drainer_that_waits_is_woken(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    waiting, given_up, wait = threading.Event(), threading.Event(), Pen._wait

    def note(pen: Pen) -> None:
        waiting.set()
        wait(pen)

    monkeypatch.setattr(Pen, "_wait", note)
    pen = Pen()
    pen.lend()
    thread, got, let_go = take(pen, given_up)
    waiting.wait(10)
    if how == "wake":
        given_up.set()
    getattr(pen, how)()
    let_go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert got == [how == "give_back"], "it was given up, or the tasks gave it back"
    assert pen.lend()


def test_a_drainer_sleeps_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = [], Pen._wait

    def note(pen: Pen) -> None:
        waits.append(1)
        wait(pen)

    monkeypatch.setattr(Pen, "_wait", note)
    pen = Pen()
    pen.lend()
    thread, got, let_go = take(pen)
    thread.join(0.05)
    assert len(waits) <= 1
    pen.give_back()
    let_go.set()
    thread.join(10)
    assert got == [True]
