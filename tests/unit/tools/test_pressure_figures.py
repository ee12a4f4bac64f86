"""The back-pressure benchmark computes what it prints from a job's events alone."""

from __future__ import annotations

from typing import Any

import pytest

from pressure_figures import Phases, catch_up, figures, percentile, visible_rows

RATE = 100.0
PHASES = Phases(calm=1.5, pressure=3.9, relief=6.0)


def told() -> list[dict[str, Any]]:
    """100 rows a second from second 0 on; epochs 4 and 5 wait in the log until 7.5 and 7.6."""
    events: list[dict[str, Any]] = []
    for epoch, seconds in enumerate((0.2, 0.2, 0.4, 0.3, 0.7, 0.2)):
        opened = epoch + 1.0
        end = opened + seconds
        logged = {"event": "logged", "epoch": epoch, "time": end, "backlog": epoch - 3, "backlog_bytes": epoch * 10}
        events += [
            {"event": "opened", "epoch": epoch, "time": opened},
            {"event": "precommitted", "epoch": epoch, "time": end, "rows": 100},
            logged if epoch >= 4 else {"event": "committed", "epoch": epoch, "time": end},
            {"event": "completed", "epoch": epoch, "time": end, "seconds": seconds},
        ]
    return [*events, *({"event": "drained", "epoch": 4 + late, "time": 7.5 + late / 10} for late in (0, 1))]


def test_checkpoints_are_counted_in_the_phase_they_felt() -> None:
    found = figures(told(), PHASES, RATE)
    assert found["without_pressure"]["checkpoints"] == 2
    assert found["without_pressure"]["p50_ms"] == pytest.approx(300)
    assert found["under_pressure"]["checkpoints"] == 2
    assert found["under_pressure"]["max_ms"] == pytest.approx(700)
    assert found["completed_under_pressure"] == 2
    assert found["longest_without_checkpoint_seconds"] == pytest.approx(1.4)
    assert found["logged_without_pressure"] == 0
    assert found["logged_under_pressure"] == 1
    assert (found["inflight_peak_bytes"], found["inflight_peak_epochs"]) == (50, 2)


def test_one_that_was_under_way_when_the_sink_slowed_down_felt_it() -> None:
    found = figures(told(), Phases(calm=1.5, pressure=3.2, relief=6.0), RATE)
    assert found["without_pressure"]["checkpoints"] == 1
    assert found["under_pressure"]["checkpoints"] == 3


def test_caught_up_is_when_the_last_row_of_before_the_relief_is_visible() -> None:
    assert catch_up(told(), 6.0, RATE) == pytest.approx(1.6)
    assert catch_up(told(), 5.0, RATE) == pytest.approx(2.5)
    assert catch_up(told()[:-1], 6.0, RATE) is None, "epoch 5 is still in the log"


def test_rows_in_the_log_are_not_visible() -> None:
    assert visible_rows(told()) == 600
    assert visible_rows(told()[:-2]) == 400


def test_a_percentile_between_two_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 1.0], 99) == pytest.approx(0.99)
