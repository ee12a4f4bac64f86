"""The demo's verdict must not be kind: each way to spoil its outputs has to end in exit status 1."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.demo import run as demo
from tests.support.demo.__main__ import options
from tests.support.demo.job import COLUMNS, output_folder
from tests.support.demo.result import true_payments, true_totals
from tests.support.demo.run import PHASES, DemoOptions, Moment, Progress, moments, run_demo

ROWS, EPOCH, WRITERS = 3_000, 500, 2
TOTALS = 1_996  # rows of the second output

Spoil = Callable[[Path], None]
Play = Callable[..., tuple[int, dict[str, Any]]]


def write_outputs(folder: Path) -> None:
    """What a faultless run leaves behind: an epoch every 500 rows, two writers for each, totals in update mode."""
    table = true_payments(ROWS)
    sums: dict[str, tuple[int, int]] = {}
    for epoch in range(ROWS // EPOCH):
        rows = table.slice(epoch * EPOCH, EPOCH)
        half = EPOCH // WRITERS
        for writer in range(WRITERS):
            _write(folder, "payments", epoch, writer, rows.slice(writer * half, half))
        touched = {}
        for row in rows.to_pylist():
            n, total = sums.get(row["account"], (0, 0))
            sums[row["account"]] = touched[row["account"]] = (n + 1, total + row["amount"])
        for writer in range(WRITERS):
            mine = {account: pair for account, pair in touched.items() if int(account[-1]) % WRITERS == writer}
            columns = {
                "account": list(mine),
                "n": [n for n, _ in mine.values()],
                "total": [t for _, t in mine.values()],
            }
            _write(folder, "totals", epoch, writer, pa.table(columns))


def _write(folder: Path, name: str, epoch: int, writer: int, rows: pa.Table) -> None:
    target = output_folder(folder, name)
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target / f"part-{name}-e{epoch:010d}-w{writer:05d}-0123456789ab.parquet")


def files(folder: Path, name: str) -> list[Path]:
    return sorted(output_folder(folder, name).glob("*.parquet"))


def drop(folder: Path, name: str) -> None:
    files(folder, name)[4].unlink()


def double(folder: Path, name: str) -> None:
    file = files(folder, name)[4]
    shutil.copy(file, file.with_name(file.name.replace("0123456789ab", "ba9876543210")))


def alter(folder: Path, name: str, column: str) -> None:
    file = files(folder, name)[4]
    rows = pq.read_table(file)
    values = rows.column(column).to_pylist()
    values[0] += 1
    pq.write_table(rows.set_column(rows.schema.get_field_index(column), column, pa.array(values)), file)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """`make demo`, with --json, where the job is replaced by prepared outputs and then something that spoils them."""

    def run(spoil: Spoil = lambda folder: None) -> tuple[int, dict[str, Any]]:
        def pretend(self: demo.Demo) -> None:
            write_outputs(self.folder)
            spoil(self.folder)

        monkeypatch.setattr(demo.Demo, "run_until_done", pretend)
        status = run_demo(DemoOptions(rows=ROWS, kills=0, json=True, seed=1))
        result = json.loads(capsys.readouterr().out)
        if result["folder"]:
            shutil.rmtree(result["folder"])
        return status, result

    return run


def test_a_faultless_run_passes_and_leaves_nothing_behind(play: Play) -> None:
    status, result = play()
    assert (status, result["ok"]) == (0, True)
    assert counts(result, "payments") == (ROWS, 0, 0, 0)
    assert counts(result, "totals")[1:] == (0, 0, 0)
    assert result["folder"] is None


def counts(result: dict[str, Any], output: str) -> tuple[int, int, int, int]:
    found, lost, doubled, unexpected = (result[output][name] for name in ("found", "lost", "duplicated", "unexpected"))
    return found, lost, doubled, unexpected


@pytest.mark.parametrize(
    ("spoil", "output", "expected"),
    [
        (lambda folder: drop(folder, "payments"), "payments", (ROWS - 250, 250, 0, 0)),
        (lambda folder: double(folder, "payments"), "payments", (ROWS + 250, 0, 250, 0)),
        (lambda folder: alter(folder, "payments", "amount"), "payments", (ROWS, 1, 0, 1)),
        (lambda folder: shutil.rmtree(output_folder(folder, "payments")), "payments", (0, ROWS, 0, 0)),
        (lambda folder: alter(folder, "totals", "total"), "totals", (TOTALS, 1, 0, 1)),
        (lambda folder: alter(folder, "totals", "n"), "totals", (TOTALS, 0, 0, 1)),
        (lambda folder: double(folder, "totals"), "totals", (TOTALS + 161, 0, 161, 0)),
        (lambda folder: shutil.rmtree(output_folder(folder, "totals")), "totals", (0, 500, 0, 0)),
    ],
)
def test_every_fault_is_found(play: Play, spoil: Spoil, output: str, expected: tuple[int, int, int, int]) -> None:
    status, result = play(spoil)
    assert (status, result["ok"]) == (1, False)
    assert counts(result, output) == expected


def test_a_file_that_cannot_be_read_is_no_success(play: Play) -> None:
    status, result = play(lambda folder: files(folder, "totals")[0].write_bytes(b"half a file") and None)
    assert status == 1
    assert result["error"]


def test_a_total_must_be_the_true_one_and_the_last_ones_must_be_there() -> None:
    """That of the first payment is true; of every account the last one is due, whatever the output holds."""
    totals = pa.table({"account": ["acc-0000", "nobody", "acc-0000"], "n": [1, 1, 9999], "total": [11, 11, 0]})
    assert true_totals(true_payments(1), totals).to_pylist() == [{"account": "acc-0000", "n": 1, "total": 11}]
    due = true_totals(true_payments(ROWS), totals)
    assert due.num_rows == 501
    assert due.slice(0, 1).to_pylist() == [{"account": "acc-0000", "n": 1, "total": 11}]
    ends = {row["account"]: row["total"] for row in due.to_pylist() if row["n"] > 1}
    payments = true_payments(ROWS).to_pylist()
    assert ends == {name: sum(row["amount"] for row in payments if row["account"] == name) for name in ends}
    assert len(ends) == 500


def test_the_definition_has_every_account() -> None:
    payments = true_payments(ROWS)
    assert set(COLUMNS) == {"id", "account", "amount", "ts"}
    assert pc.count_distinct(payments.column("account")).as_py() == 500
    assert np.array_equal(payments.column("id").to_numpy(), np.arange(ROWS))


def event(name: str, query: str = "payments", **more: object) -> dict[str, object]:
    return {"time": 100.0, "event": name, "query": query, **more}


def test_a_job_that_only_had_to_finish_has_recovered_when_it_ends() -> None:
    progress = Progress(100, [])
    progress.note_kill()
    progress.note_start(98.0)
    assert feed(progress, event("stopped")) == ["recovered in 2.0 s, to do was: nothing"]


def test_kills_are_spread_over_the_run_and_over_the_phases() -> None:
    for seed in range(50):
        plan = moments(5, 200_000, random.Random(seed))
        assert {moment.phase for moment in plan} == set(PHASES)
        rows = [moment.rows for moment in plan]
        assert rows == sorted(rows)
        assert 0 < rows[0] < rows[-1] < 0.95 * 200_000
        assert moments(5, 200_000, random.Random(seed)) == plan
    assert moments(0, 10, random.Random(0)) == []
    assert len(moments(12, 1000, random.Random(0))) == 12


def test_no_kill_before_the_job_has_committed_something_since_its_start() -> None:
    plan = [Moment(10, "decided", 0.5)]
    progress = Progress(100, plan)
    progress.note_start(90.0)
    feed(progress, event("decided", epoch=0))
    assert progress.kill_after(event("decided", epoch=0)) is None
    feed(progress, event("committed", epoch=0, rows=20))
    assert progress.kill_after(event("committed", epoch=0)) is None
    assert progress.kill_after(event("decided", epoch=1)) == 0.5
    assert progress.note_kill() == "payments epoch 0 committed"
    assert progress.kill_after(event("decided", epoch=1)) is None


def feed(progress: Progress, *events: dict[str, object]) -> list[str]:
    return [line for one in events for line in progress.take(one)]


def test_no_kill_once_all_rows_are_there() -> None:
    progress = Progress(100, moments(1, 100, random.Random(0)))
    feed(progress, event("committed", epoch=0, rows=100))
    assert all(progress.kill_after(event(name, epoch=1)) is None for name in PHASES)


def test_a_recovery_is_timed_from_the_restart_to_the_first_commit() -> None:
    progress = Progress(100, moments(1, 100, random.Random(0)))
    progress.note_start(50.0)
    feed(progress, event("decided", epoch=3), event("precommitted", epoch=3, rows=7))
    progress.note_kill()
    progress.note_start(95.0)
    again = event("committed", epoch=3, rows=7, recovery=True)
    lines = feed(progress, again, again, event("recovered", epoch=4, action="finished"))
    assert lines == []
    lines = feed(progress, event("committed", epoch=4, rows=1), event("committed", epoch=5, rows=1))
    assert lines == ["recovered in 5.0 s, to do was: finished"]
    assert progress.committed == {"payments": 9}
    assert progress.recoveries == [5.0]
    assert feed(progress, event("failed", error="no")) == ["payments failed: no"]


def test_the_options_are_what_the_command_line_says() -> None:
    given = options(["--rows", "10", "--kills", "0", "--seed", "4"])
    assert given == DemoOptions(rows=10, kills=0, json=False, seed=4, keep=False)
