"""The power cuts under a real Spark, all of them, with their results kept: `python -m tests.support.power_cuts`.

python -m tests.support.power_cuts [--record FILE] [what pytest takes …]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.support.proof import ROOT, circumstances, keep, read

SUITE = "tests/faults/test_power_cut_spark.py"


def read_report(report: Path) -> dict[str, dict[str, Any]]:
    """By test, from pytest's report: what came of it, and what its cuts have taken."""
    results = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "not run" if "skipped" in kinds else "passed"
        counts = {str(one.get("name")): int(str(one.get("value"))) for one in case.iter("property")}
        name = str(case.get("name"))
        results[name] = {"ok": outcome == "passed", "outcome": outcome, **counts}
        results[name]["seconds"] = round(float(case.get("time", 0)))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="keep the result of each test in this file, for make proof")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", SUITE, "-p", "no:cacheprovider", f"--junitxml={report}", *more]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        results = read_report(report) if report.exists() else {}
    if given.record is not None and status in (0, 1):  # else pytest was interrupted, or found no test
        parts = {*results, *(read(given.record) if more else ())}
        for name, result in results.items():
            keep(given.record, name, circumstances("make power-cuts") | result, parts=parts)
    return status


if __name__ == "__main__":
    sys.exit(main())
