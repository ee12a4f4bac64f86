"""Run the core of the suite on every version of Spark, and of Python, that is supported: `make matrix`.

Each version gets an environment in the user's cache. What ran is kept in docs/reference/versions.json, by version, and
shown as a table in docs/reference/versions.md. A version that was not asked for keeps the result of its last run.

    python -m scripts.run_matrix [4.0.5 4.1.4 …] [--python 3.12 …] [what pytest takes …]
    python -m scripts.run_matrix --table      writes the table again from what is kept
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.supply.versions import VERSIONS
from tests.support.environments import ROOT, environment, variables

KEPT = ROOT / "docs" / "reference" / "versions.json"
PAGE = ROOT / "docs" / "reference" / "versions.md"
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"
#: Unit tests are not among them: some name what only the version of the lock has.
FOLDERS = ("tests/integration", "tests/faults", "tests/matrix")
THEMES = {
    "log": "recovery from Spark's log",
    "kills": "Kafka to Kafka, killed",
    "backends": "state backends",
    "savepoint": "savepoints",
    "rescale": "rescale",
    "upgrade": "takes up the version before",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The core of the suite on every version")
    parser.add_argument("versions", nargs="*", default=[])
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--table", action="store_true")
    asked, more = parser.parse_known_args()
    if asked.table:
        write_table()
        return
    failed = False
    for spark in asked.versions or [one.patch for one in VERSIONS]:
        for python in asked.python or [sys.executable]:
            found = run(spark, python, more)
            keep(found)
            failed |= found["exit"] != 0
    write_table()
    sys.exit(failed)


def run(spark: str, python: str, more: list[str]) -> dict[str, Any]:
    """One version's results: per theme how many tests passed, failed and do not apply."""
    own = environment(spark, python)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [own, "-m", "pytest", *FOLDERS, "-m", "core", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = subprocess.run([*map(str, command), *more], cwd=ROOT, env={**variables(own), **_older(spark, python)})
        results = read_report(report)
    told = subprocess.run(
        [str(own), "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True
    )
    return {
        "spark": spark,
        "python": told.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "exit": done.returncode,
        "results": results,
    }


def _older(spark: str, python: str) -> dict[str, str]:
    """Where the version before is, for the test that takes up what it left."""
    patches = [one.patch for one in VERSIONS]
    minor = tuple(map(int, spark.split(".")[:2]))
    before = [patch for patch in patches if tuple(map(int, patch.split(".")[:2])) < minor]
    return {"PENSTOCK_OLDER_PYTHON": str(environment(before[-1], python))} if before else {}


def read_report(report: Path) -> dict[str, dict[str, int]]:
    """By theme, from pytest's report."""
    results: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest has just written it
        theme = next((one.get("value") for one in case.iter("property") if one.get("name") == "core"), None)
        if theme is None:
            continue
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "left out" if "skipped" in kinds else "passed"
        results.setdefault(str(theme), Counter())[outcome] += 1
    return {theme: dict(count) for theme, count in results.items()}


def keep(found: dict[str, Any]) -> None:
    """Beside what is kept of other versions, themes of this one that did not run included."""
    kept = _kept()
    key = f"{found['spark']} {found['python']}"
    before = kept.get(key, {}).get("results", {})
    kept[key] = {**found, "results": {**before, **found["results"]}}
    KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def table(kept: dict[str, Any]) -> str:
    lines = [
        "| PySpark | Python | " + " | ".join(THEMES.values()) + " | on |",
        "|---|---|" + "---|" * (len(THEMES) + 1),
    ]
    for one in kept.values():
        cells = [_cell(one["results"].get(theme, {})) for theme in THEMES]
        lines.append(f"| {one['spark']} | {one['python']} | " + " | ".join(cells) + f" | {one['date']} |")
    ran = {one["spark"] for one in kept.values()}
    missing = [one.patch for one in VERSIONS if one.patch not in ran]
    lines += [f"| {patch} | | " + "not run | " * len(THEMES) + "|" for patch in missing]
    return "\n".join(lines)


def _cell(count: dict[str, int]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items(), reverse=True)) or "not run"


def write_table() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    aside = PAGE.with_suffix(f".{os.getpid()}")
    aside.write_text(f"{before}{BEGIN}\n{table(_kept())}\n{END}{after}")
    aside.replace(PAGE)


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


if __name__ == "__main__":
    main()
