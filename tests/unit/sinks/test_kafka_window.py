"""How rows are handed to librdkafka: in pieces, few on their way at a time. The handle here stands for a broker that
answers at once, late, or never."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.kafka import faults
from penstock.sinks.kafka import producer
from penstock.sinks.kafka.messages import MESSAGE, messages
from penstock.sinks.kafka.producer import WINDOW, Producer

VALUES = pa.array([b"%06d" % number * 16 for number in range(40_000)])  # of 96 bytes


class Handle:
    """Notes which rows are taken; `delivers` says how many of those on their way are gone at the next look."""

    def __init__(self, delivers: float, room: int = 10**9) -> None:
        self.delivers, self.room = delivers, room
        self.taken: list[int] = []
        self.on_their_way = self.most = self.looks = 0

    def waiting(self) -> int:
        self.looks += 1
        self.on_their_way -= int(self.on_their_way * self.delivers)
        return self.on_their_way

    def poll(self, seconds: float) -> None:
        self.room = 10**9

    def produce_batch(self, topic: int, address: int, count: int) -> int:
        memory: Any = (c.c_char * (count * MESSAGE.itemsize)).from_address(address)
        offered = np.frombuffer(memory, MESSAGE)
        accepted = min(count, self.room)
        self.room -= accepted
        offered["err"][accepted:] = faults.QUEUE_FULL
        self.taken.extend(offered["payload"][:accepted].tolist())
        self.on_their_way += accepted
        self.most = max(self.most, self.on_their_way)
        return accepted


def sent(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of the rows, as they should be; `handle` has those that came."""
    made: Any = Producer.__new__(Producer)
    made._handle, made._failures = handle, 0
    monkeypatch.setattr(Producer, "_topic", lambda *_: 1)
    rows = messages(VALUES, None, None)
    made._send_batch("topic", rows)
    expected: list[int] = rows["payload"].tolist()
    return expected


def test_few_rows_are_on_their_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle(delivers=0.5)
    assert sent(handle, monkeypatch) == handle.taken
    assert handle.most <= WINDOW / 96 * 1.5


def test_a_broker_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_WINDOW_SECONDS", 0.0)
    handle = Handle(delivers=0.0)
    assert sent(handle, monkeypatch) == handle.taken
    assert handle.most == len(VALUES)


def test_what_a_full_queue_refused_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle(delivers=0.5, room=1_234)
    assert sent(handle, monkeypatch) == handle.taken


def test_rows_larger_than_the_window_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "WINDOW", 10)
    handle = Handle(delivers=1.0)
    assert sent(handle, monkeypatch) == handle.taken
    assert handle.most == 1
