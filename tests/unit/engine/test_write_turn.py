"""Whose turn it is to write: tasks and drainer never write at the same time, and whoever waits for it is woken."""

from __future__ import annotations

import threading

import pytest

from penstock.engine.drainer import WriteTurn


def take(
    turn: WriteTurn, given_up: threading.Event | None = None
) -> tuple[threading.Thread, list[bool], threading.Event]:
    """A drainer that takes the turn, and holds it until it is told to let go."""
    got, let_go = list[bool](), threading.Event()

    def work() -> None:
        with turn.drainer(given_up.is_set if given_up else lambda: False) as mine:
            got.append(mine)
            let_go.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, got, let_go


def test_where_no_task_writes_the_drainer_has_it_at_once() -> None:
    with WriteTurn().drainer(lambda: True) as mine:
        assert mine


def test_tasks_have_it_until_they_give_it_back() -> None:
    turn = WriteTurn()
    assert turn.give_to_tasks()
    assert turn.give_to_tasks(), "the next epoch's tasks, while nobody else wants it"
    _, got, let_go = take(turn)
    while turn.give_to_tasks():
        pass  # the drainer has not asked yet
    turn.take_from_tasks()
    while not got:
        pass
    assert got == [True]
    assert not turn.give_to_tasks(), "the drainer has it"
    let_go.set()


@pytest.mark.parametrize("how", ["take_from_tasks", "wake"])
def test_a_drainer_that_waits_is_woken(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    waiting, given_up, wait = threading.Event(), threading.Event(), WriteTurn._wait

    def note(turn: WriteTurn) -> None:
        waiting.set()
        wait(turn)

    monkeypatch.setattr(WriteTurn, "_wait", note)
    turn = WriteTurn()
    turn.give_to_tasks()
    thread, got, let_go = take(turn, given_up)
    waiting.wait(10)
    if how == "wake":
        given_up.set()
    getattr(turn, how)()
    let_go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert got == [how == "take_from_tasks"], "it was given up, or the tasks gave it back"
    assert turn.give_to_tasks()


def test_a_drainer_sleeps_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = [], WriteTurn._wait

    def note(turn: WriteTurn) -> None:
        waits.append(1)
        wait(turn)

    monkeypatch.setattr(WriteTurn, "_wait", note)
    turn = WriteTurn()
    turn.give_to_tasks()
    thread, got, let_go = take(turn)
    thread.join(0.05)
    assert len(waits) <= 1
    turn.take_from_tasks()
    let_go.set()
    thread.join(10)
    assert got == [True]
