"""Flink's statistics of checkpoints: right for a few epochs, cheap for many."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.ops.process.registry import Entry
from penstock.ops.server import flink
from penstock.ops.server.run_view import RunView
from penstock.ops.server.runs import Run
from tests.support.ui_client import checkpoint


def run_of(epochs: int) -> Run:
    view = RunView()
    for epoch in range(epochs):
        view.on_event({"time": float(epoch), "event": "checkpoint", **checkpoint(epoch)})
    return Run(Entry("0" * 32, "payments"), view)


@pytest.mark.parametrize(("epochs", "again"), [(10, True), (5000, False)])
def test_many_epochs_are_not_summed_up_for_every_look(
    epochs: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []
    spread = flink.spread

    def counted(values: Any) -> dict[str, float]:
        summed.append(len(values))
        return spread(values)

    monkeypatch.setattr(flink, "spread", counted)
    run = run_of(epochs)
    first = flink.statistics(run, shown=True)
    assert first["summary"]["end_to_end_duration"]["p50"] == 500
    assert len(summed) == len(first["summary"])
    run.view.on_event({"time": 9e6, "event": "checkpoint", **checkpoint(epochs, total_ms=900.0)})
    second = flink.statistics(run, shown=True)
    assert (len(summed) > len(first["summary"])) is again
    assert second["counts"]["completed"] == epochs + 1
    assert second["latest"]["completed"]["id"] == second["history"][0]["id"] == epochs
    assert len(second["history"]) == min(100, epochs + 1)
