"""The benchmark beside Flink computes its figures from what was seen from outside, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench_flink
import flink_report
import flink_wanted
from flink_plots import draw
from flink_sql import statements
from rounds import Spread
from stream_rows import ROW, columns, row
from streams import Seen
from tasks import Task
from visible import Step, counted, window


def step(moment: float, rows: int) -> Step:
    return Step(moment, rows, (rows,), ())


def test_a_rate_is_taken_from_whole_checkpoints_without_the_last() -> None:
    """Partitions of one checkpoint become visible one after the other; the last checkpoint waited for its time."""
    steps = [one for n in range(1, 9) for one in (step(n, n * 100 - 50), step(n + 0.05, n * 100))]
    begin, end = window([*steps, step(9.9, 810)], warm_up=200)
    assert (begin.rows, end.rows) == (200, 800)
    assert (end.rows - begin.rows) / (end.moment - begin.moment) == pytest.approx(100)


def test_a_rate_is_taken_from_rows_that_come_all_the_time() -> None:
    begin, end = window([step(n * 0.05, n * 10) for n in range(1, 101)], warm_up=250)
    assert (begin.rows, end.rows) == (250, 950)


def test_too_few_steps_are_no_rate() -> None:
    with pytest.raises(SystemExit, match="too few"):
        window([step(1, 100)], warm_up=25)


def test_counts_by_key_tell_how_many_rows_they_stand_for() -> None:
    """Keys 0 and 2 are in partition 0, key 1 in partition 1; each step sees the partitions up to its ends."""
    number = np.array
    counts = {
        0: (number([0, 1, 3, 4]), number([0, 2, 0, 2]), number([1, 1, 2, 3])),
        1: (number([0, 2]), number([1, 1]), number([5, 7])),
    }
    steps = [Step(1.0, 0, (2, 1), ()), Step(2.0, 0, (5, 1), ()), Step(3.0, 0, (5, 3), ())]
    found, latest = counted(counts, 3, steps)
    assert [one.rows for one in found] == [7, 10, 12]
    assert latest.tolist() == [2, 7, 3]


def test_a_row_says_when_it_was_made() -> None:
    assert len(row(7, 10**18)) == ROW.itemsize == 100
    ids, made = columns(row(7, 10**18) + row(8, 10**18 + 1))
    assert ids.tolist() == [7, 8]
    assert made.tolist() == [10**18, 10**18 + 1]


def test_latency_and_silence_are_what_the_reader_saw() -> None:
    second = 10**9
    seen = Seen(np.arange(4), np.array([1, 2, 3, 9]) * second, np.array([2, 3, 9, 10]) * second)
    assert seen.latencies_ms(1, 4).tolist() == [1000, 1000, 6000]
    assert seen.longest_silence(4, 20) == 6  # killed at 4, silent from 3 to 9
    assert seen.longest_silence(9.5, 20) == 1
    assert seen.longest_silence(11, 20) == 0


@pytest.mark.parametrize("work", ["bytes", "json", "keys"])
def test_flink_is_given_exactly_once_and_the_interval(work: str) -> None:
    sql = statements(Task(work, "host:1", "in", "out", "/nowhere", interval=0.2), "file:///nowhere")
    assert "'sink.delivery-guarantee' = 'exactly-once'" in sql
    assert "'execution.checkpointing.interval' = '200 ms'" in sql
    assert "'properties.isolation.level' = 'read_committed'" in sql
    assert sql.count("CREATE TABLE") == 2


def results() -> dict[str, Any]:
    def rounds(figure: str, *values: float) -> dict[str, Any]:
        names = {one.figure: 1.0 for shown in flink_report.FIGURES.values() for one in shown}
        return {"rounds": [{**names, figure: value, "other_cores": 0.1, "lost": 0} for value in values]}

    return {
        "machine": {
            "date": "2026-01-01", "cores": 2, "processor": "a <quick> one", "memory_gigabytes": 8, "flink": "2.2.0",
            "spark": "4.2.0", "java": 17,
        },
        "latency": {"100": {"flink": rounds("p50_ms", 90, 100, 95), "penstock": rounds("p50_ms", 150, 140, 160)}},
        "silence": {"1000": {"flink": rounds("silence_seconds", 20), "penstock": rounds("silence_seconds", 2)}},
        "writers": {"4": {"rounds": [{"open_seconds": 1, "seal_seconds": 0.002, "commit_seconds": 0.004}]}},
        "history": {"epoch_ms": {"100": 90.0, "1000": 91.0}},
    }  # fmt: skip


def test_the_report_stands_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n\n{flink_report.BEGIN}\nold\n{flink_report.END}\n\nbehind\n")
    monkeypatch.setattr(flink_report, "ROOT", tmp_path)
    monkeypatch.setattr(flink_report, "PAGE", page)
    monkeypatch.setattr(flink_report, "PICTURES", tmp_path)
    flink_report.write(results())
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("behind\n")
    assert "old" not in text
    assert "| 100 ms interval: p50 | 95 ms (90 to 100) | 150 ms (140 to 160) | 1.58 |" in text
    assert "lost or doubled in all of them: 0" in text
    assert "| 4 | 1,000 ms | 2 ms | 4 ms |" in text
    flink_report.write(results())
    assert page.read_text() == text, "it can be written again"
    assert (tmp_path / "bench-latency.svg").read_text().count("<rect") == 2 + 4


def test_a_latency_at_another_rate_is_reported_beside_the_usual_one() -> None:
    found = results()
    found["latency"]["100 at 50000"] = found["latency"]["100"]
    assert "100 ms, 50,000 rows/s, p50" in draw(found)["bench-latency.svg"]
    lines = [line.what for line in flink_report.lines("latency", found["latency"])]
    assert lines[0] == "100 ms interval: p50"
    assert "100 ms interval, 50,000 rows/s: p99" in lines


def test_every_piece_of_what_is_wanted_is_a_command() -> None:
    for name in flink_wanted.PIECES:
        for trial in (False, True):
            bench_flink.parser().parse_args(flink_wanted.arguments(name, trial=trial))


def test_what_is_wanted_is_judged_by_the_medians() -> None:
    nothing = list(flink_wanted.verdicts({}))
    assert not any(one.met for one in nothing)
    assert all(one.found is None for one in nothing)

    def rounds(**figures: list[float]) -> dict[str, Any]:
        return {"rounds": [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]}

    flink = rounds(p50_ms=[80, 90, 100], p99_ms=[200, 200, 200], cores=[1, 1, 1])
    ours = rounds(p50_ms=[45, 30, 99], p99_ms=[101, 101, 90], cores=[0.5, 0.5, 0.5])
    found = {"latency": {"100": {"flink": flink, "penstock, real time": ours}}}
    judged = {one.what: one for one in flink_wanted.verdicts(found) if one.found is not None}
    p50, p99 = (judged[f"real time by Flink, 2,000 rows/s, {percent}"] for percent in ("p50", "p99"))
    assert (p50.found, p50.met) == (0.5, True)
    assert (p99.found, p99.met) == (pytest.approx(0.505), False)
    assert judged["real time by Flink, 2,000 rows/s, cores used"].found == 0.5


def test_pictures_are_made_of_what_there_is() -> None:
    made = draw(results())
    assert set(made) == {"bench-latency.svg", "bench-silence.svg", "bench-writers.svg", "bench-history.svg"}
    assert all(one.startswith("<svg") and "http://www.w3.org/2000/svg" in one for one in made.values())


def test_a_spread_is_the_median_and_both_ends() -> None:
    assert Spread.of([{"x": 3}, {"x": 1}, {"x": 2}], "x") == Spread(2, 1, 3)
