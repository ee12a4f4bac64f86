"""Long runs keep what they measured, and the page of proof shows that and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scripts import check_specification, make_proof

from tests.support import power_cuts, proof
from tests.support.cluster_chaos import Report as ClusterReport
from tests.support.real_time_chaos import Report as RealTimeReport


def test_without_results_the_page_has_no_number(tmp_path: Path) -> None:
    text = make_proof.page(tmp_path)
    assert text.count("| not run |") == text.count("\nNot run. `make ") == len(make_proof.PARTS)
    assert not re.search(r"\d", re.sub(r"`[^`\n]*`", "", text)), "besides those of commands"


def test_a_run_keeps_its_numbers_beside_those_of_other_parts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.json"
    for part, rows in (("a", 1), ("b", 2), ("a", 3)):
        with proof.recorded(path, part, f"make {part}", 7) as numbers:
            numbers |= {"ok": True, "rows": rows}
    kept = proof.read(path)
    assert {part: one["rows"] for part, one in kept.items()} == {"a": 3, "b": 2}
    assert kept["a"].items() >= {"ok": True, "command": "make a", "seed": 7}.items()
    assert {"date", "commit", "versions", "cores", "seconds"} <= kept["a"].keys()
    assert len(path.read_text().splitlines()) == 4, "one part a line"
    assert [one.name for one in path.parent.iterdir()] == ["kept.json"]


def test_a_part_that_is_gone_goes(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    for part in ("old", "new"):
        proof.keep(path, part, {"ok": True}, parts=["new"])
    assert list(proof.read(path)) == ["new"]


def test_a_run_that_fails_is_kept_as_failed_and_an_interrupted_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    with pytest.raises(ValueError, match="too few"), proof.recorded(path, "a", "make a") as numbers:
        numbers |= {"ok": True, "rows": 3}
        raise ValueError("too few rows\nand a page of log")
    assert proof.read(path)["a"].items() >= {"ok": False, "error": "ValueError: too few rows", "rows": 3}.items()
    with pytest.raises(KeyboardInterrupt), proof.recorded(path, "b", "make b"):
        raise KeyboardInterrupt
    assert list(proof.read(path)) == ["a"]


def test_where_nothing_is_to_be_kept_nothing_is(tmp_path: Path) -> None:
    with proof.recorded(None, "a", "make a") as numbers:
        numbers["ok"] = True
    assert not list(tmp_path.iterdir())


def kept(folder: Path, file: str, part: str, **numbers: object) -> None:
    about = proof.circumstances("make it SEED=5", 5) | {"seconds": 120.0, "ok": True}
    proof.keep(folder / f"{file}.json", part, about | numbers)


def full(folder: Path) -> str:
    """The page where every part has run."""
    simulated: dict[str, object] = {
        "histories": 12345,
        "a_minute": 9000,
        "ms_of_a_core": 8.1,
        "workers": 2,
        "steps": 9,
        "starts": 8,
    }
    simulated |= {"faults": {"kill": 7}, "reported": {}, "anomalies": 0, "failed_seeds": []}
    kept(folder, "simulation", "histories", **simulated)
    bug = {"found": True, "histories": 41, "core_seconds": 0.7, "faults": 2, "anomaly": "kafka: lost"}
    bug |= {"of": "protocol", "among": "takeovers"}
    lost = {**bug, "found": False, "histories": 20000, "faults": -1, "anomaly": ""}
    kept(folder, "simulation", "planted", ok=False, bugs={"no claim": bug, "hidden": lost}, set_aside={"x": "why"})
    kept(folder, "mutants", "checkpoint/ledger.py", mutants=40, caught=39, explained=1)
    kept(folder, "power-cuts", "test_into_kafka[stateless]", outcome="passed", cuts=30, taken=300)
    kept(folder, "power-cuts", "test_on_a_real_file_system[join]", ok=False, outcome="not run", cuts=0, taken=0)
    kept(folder, "cluster-chaos", "a cluster", kills={"driver": 2}, starts=3, rows=900, lost=0, doubled=0, open=0)
    report = RealTimeReport(drivers=4, lost=1)
    report.faults["JVM killed"] += 1
    report.rows["copy"] += 600
    kept(folder, "real-time-chaos", "1 broker, local", **report.numbers)
    rows = {"expected": 500, "found": 500, "lost": 0, "duplicated": 0, "unexpected": 0}
    kept(folder, "soak", "the demo", payments=rows, totals=rows, kills=6, recoveries=6, epochs=70)
    broken = {"states": 900, "violated": "NothingLost"}
    kept(folder, "specification", "Epochs", bounds={"Runs": 3}, states=62456, violated="", bugs={"no claim": broken})
    return make_proof.page(folder)


def test_every_result_is_shown_with_the_command_to_repeat_it(tmp_path: Path) -> None:
    text = full(tmp_path)
    for shown in (
        "| 12,345 histories, 0 with an anomaly |",
        "| **1 failed** | 1 of 2 found |",
        "| no claim | protocol | takeovers | 41 | 0.7 | 2 | kafka: lost |",
        "**not found** in 20,000",
        "| passed | 39 of 40 caught in 1 modules, 1 explained |",
        "| 30 cuts in 1 tests, 1 not run |",
        "| `test_on_a_real_file_system` | 1 not run |",
        "| **1 failed** | 1 faults, 600 rows, lost 1, doubled 0 |",
        "900 rows: lost 0, doubled 0, transactions left open 0.",
        "500 rows in, 500 out, 6 kills",
        "| 62,456 states, 1 of 1 bugs noticed |",
        "| no claim | 900 | NothingLost |",
    ):
        assert shown in text
    assert text.count("`make it SEED=5` on 2") == 7, "all but the mutants, of which nothing is drawn"
    assert "**The run failed**. `make it" in text


def test_a_run_that_died_on_the_way_is_shown_as_failed(tmp_path: Path) -> None:
    parts = {"simulation": "histories", "soak": "the demo", "real-time-chaos": "1 broker", "cluster-chaos": "a cluster"}
    for file, part in parts.items():
        kept(tmp_path, file, part, ok=False, error="OSError: the disk is full")
    kept(tmp_path, "specification", "Epochs", ok=False, error="OSError: the disk is full")
    kept(tmp_path, "simulation", "planted", ok=False, error="OSError: the disk is full")
    assert make_proof.page(tmp_path).count("**The run failed**: OSError: the disk is full") == 6


def test_reports_can_be_kept() -> None:
    json.dumps([RealTimeReport().numbers, vars(ClusterReport())])
    assert not RealTimeReport().numbers["ok"]


def test_what_pytest_reports_of_power_cuts(tmp_path: Path) -> None:
    cases = """<testcase name="a[0]" time="61.5"><properties><property name="cuts" value="3"/></properties></testcase>
        <testcase name="b" time="1"><failure/></testcase><testcase name="c" time="0"><skipped/></testcase>"""
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    found = power_cuts.read_report(report)
    assert found["a[0]"] == {"ok": True, "outcome": "passed", "cuts": 3, "seconds": 62}
    assert [found[name]["outcome"] for name in "bc"] == ["failed", "not run"]


def test_every_part_is_one_that_make_runs() -> None:
    made = (proof.ROOT / "Makefile").read_text()
    for command in make_proof.COMMANDS.values():
        assert f"\n{command.split()[1]}:" in made
    assert set(make_proof.COMMANDS) == set(make_proof.PARTS) == set(make_proof.MEASURED)


def test_the_specification_knows_its_bugs_and_invariants() -> None:
    text = (proof.FOLDER / "tla" / "Epochs.tla").read_text()
    assert set(re.findall(r'Bug (?:=|#) "([^"]*)"', text)) == set(check_specification.BUGS)
    for invariant in check_specification.INVARIANTS.split():
        assert f"\n{invariant} == " in text
