"""One line in a job's log for many epochs."""

from __future__ import annotations

import logging

import pytest

from penstock.ops.attach import EpochLog


def test_a_line_for_the_first_epoch_then_for_a_hundred_or_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    log = EpochLog(clock=lambda: now)

    def epochs(count: int, seconds: float, query: str = "out") -> list[str]:
        nonlocal now
        caplog.clear()
        for _ in range(count):
            now += seconds
            log({"event": "precommitted", "query": query, "rows": 10})
            log({"event": "completed", "query": query, "epoch": 7})
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.INFO, "penstock"):
        first = "query out: epoch 7 is complete; since the last line 1 epochs, 10 rows, 0 rows/s"
        assert epochs(1, 1) == [first]
        assert epochs(99, 0.1) == []
        hundredth = "query out: epoch 7 is complete; since the last line 100 epochs, 1000 rows, 100 rows/s"
        assert epochs(1, 0.1) == [hundredth]
        assert len(epochs(3, 61)) == 3
        assert epochs(1, 0, "other") == [first.replace("out", "other")]
        log({"event": "restarting", "query": None})
