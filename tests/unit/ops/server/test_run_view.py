"""What a run's events come to."""

from __future__ import annotations

from typing import Any

from penstock.events import Events
from penstock.ops.server.run_view import MOST_EPOCHS, RING, RunView
from tests.support.ui_client import a_story, checkpoint


def told(epochs: int = 3) -> RunView:
    events, view = Events(), RunView()
    events.listen(view.on_event)
    a_story(events.emit, epochs)
    return view


def test_an_epoch_and_its_phases() -> None:
    [last, *_], more = told().epochs("out", before=4, limit=1)
    assert more
    assert (last["epoch"], last["outcome"], last["rows"], last["bytes"], last["total_ms"]) == (
        3,
        "complete",
        10,
        1000,
        500,
    )
    assert last["phases"] == {"read_ms": 200.0, "prepare_ms": 100.0, "decide_ms": 50.0, "commit_ms": 100.0}
    assert (last["opened"], last["ended"]) == (1_767_225_602_500, 1_767_225_603_000)
    assert "operators" not in last


def test_what_was_recorded_before_these_fields_were() -> None:
    """A history of an earlier version."""
    view = RunView()
    body = {"time": 7.0, "event": "checkpoint", "query": "out", "epoch": 4, "rows": 1, "total_ms": 250.0}
    view.load([body])
    [[epoch], _] = [view.epochs()[0], None]
    assert (epoch["opened"], epoch["ended"]) == (6750, 7000)
    assert set(epoch["phases"].values()) == {None}


def test_pages_of_epochs() -> None:
    view = told(30)
    seen: list[int] = []
    before, more = None, True
    while more:
        page, more = view.epochs(None, before, 7)
        seen += [epoch["epoch"] for epoch in page]
        before = seen[-1]
    assert seen == list(range(31, 0, -1))
    assert view.epochs("nobody") == ([], False)


def test_a_series_is_thinned_and_keeps_the_slowest() -> None:
    view = RunView()
    for epoch in range(10_500):
        slow = 9_000.0 if epoch == 7_777 else 100.0
        view.on_event({"time": float(epoch), "event": "checkpoint", **checkpoint(epoch, total_ms=slow)})
    series = view.series("out", 500)
    assert {len(values) for values in series.values()} <= set(range(1, 501))
    assert max(series["total_ms"]) == 9_000.0
    assert len(view.all_epochs()) == MOST_EPOCHS
    assert view.queries()["out"].complete == 10_500  # counted, though not all are kept
    assert view.series("nobody", 500)["time"] == []


def test_where_a_query_stands() -> None:
    view = told()
    steps: list[tuple[str, Any]] = []
    for name in ("opened", "precommitted", "decided", "completed"):
        view.on_event({"time": 9.0, "event": name, "query": "out", "epoch": 7, "generation": 4})
        now = view.queries()["out"]
        steps.append((now.phase, now.epoch))
    assert steps == [("prepare", 7), ("decide", 7), ("commit", 7), ("idle", 7)]
    assert (now.generation, now.rows_total, now.complete, now.failed, now.phase_since) == (4, 30, 3, 1, 9000)


def test_what_else_is_noted() -> None:
    view = told()
    [restart] = view.notes("restarts")
    assert (restart["verdict"], restart["seconds"]) == ("retry", 1.0)
    newest = view.notes("exceptions")[0]
    assert (newest["safe"], newest["to_do"], newest["query"]) == ("All.", "Look.", "out")
    assert newest["happened"] == "PreCommitFailed: the row {'iban': 'DE02'} was refused"
    assert view.notes("recoveries")[0]["action"] == "finished"
    assert view.notes("savepoints")[0]["path"] == "s3a://bucket/savepoint-1"
    assert view.inflight() == [{"query": "out", "sink": "out", "epochs": 1, "bytes": 400}]
    [operator] = view.operators()
    assert (operator["query"], operator["operator"], operator["rows"]) == ("out", "stateStoreSave", 4)


def test_events_can_be_caught_up_with() -> None:
    view = RunView()
    for number in range(RING + 500):
        view.on_event({"time": 0.0, "event": "opened", "query": "out", "epoch": number})
    found = view.events_after(RING + 498)
    assert [number for number, _ in found] == [RING + 499, RING + 500]
    assert len(view.events_after(0)) == RING
    assert view.events_after(view.newest_event) == []


def test_what_is_not_an_event_spoils_no_other() -> None:
    """From a file that a disk gave back changed."""
    good = {"time": 7.0, "event": "checkpoint", "query": "out", "epoch": 4, "rows": 1, "total_ms": 250.0}
    bad: list[dict[str, Any]] = [
        {**good, "epoch": "four"}, {**good, "query": None}, {**good, "total_ms": "long"}, {**good, "time": "now"},
        {**good, "commit_ms": float("nan")}, {**good, "bytes": float("inf")}, {**good, "operators": [7]},
        {**good, "sinks": 7}, {"time": 7.0, "event": "checkpoint"}, {**good, "rows": [1]},
        {"time": 7.0, "event": "logged", "backlog": "many"},
    ]  # fmt: skip
    view = RunView()
    assert view.load([*bad, good, *bad]) == 2 * len(bad)
    assert [epoch["epoch"] for epoch in view.epochs()[0]] == [4]
    assert view.operators() == []
    assert view.series(None, 10)["total_ms"] == [250.0]
