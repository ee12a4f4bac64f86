"""A million rows into PostgreSQL, MariaDB, Parquet files and a Delta table: Penstock's exactly-once sinks against
Spark's own writers, which promise nothing, side by side in one run.

Both sides read the same Parquet files as a stream, in the same session, in turn: two rounds to warm up, then three, of
which the median counts. What was written is counted after every run. Prints a table, writes bench/results/sinks.json.

    python bench/bench_sinks.py [--rows 1000000] [--repeat 3] [--only postgres mariadb parquet delta]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a benchmark is started as a script, and some helpers are the tests'

from neighbours import Neighbours  # noqa: E402
from sinks_input import make_input  # noqa: E402
from tests.support.servers.mariadb import MariaDb  # noqa: E402
from tests.support.servers.postgres import Postgres  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
#: How many times Spark's rows a second each sink is to reach.
WANTED = {"postgres": 3.0, "mariadb": 0.95, "parquet": 0.9, "delta": 0.9}
NAMES = {"postgres": "PostgreSQL", "mariadb": "MariaDB", "parquet": "Parquet", "delta": "Delta"}
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that do not count: the JVM compiles meanwhile")
    parser.add_argument("--repeat", type=int, default=3, help="rounds that count")
    parser.add_argument("--only", nargs="+", choices=tuple(WANTED), default=tuple(WANTED), metavar="TARGET")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "sinks.json")
    options = parser.parse_args()
    written: Path = options.results
    results = json.loads(written.read_text()) if written.exists() else {}
    files = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        given = {
            "input": f"{folder}/input",
            "rows": options.rows,
            "files": files,
            "warm_up": options.warm_up,
            "repeat": options.repeat,
        }
        given["all_rows"] = make_input(Path(folder) / "input", options.rows, files)
        for target in options.only:
            with Neighbours() as others, server(target) as where:
                told = run(target, {**given, **where, "target": target, "folder": f"{folder}/{target}"})
            results[target] = judged(target, {**told, "rows": options.rows, "other_cores": round(others.cores, 2)})
            console.print(f"  {said(target, results[target])}{others.remark}")
    show({target: results[target] for target in options.only}, options.rows)
    written.parent.mkdir(exist_ok=True)
    written.write_text(json.dumps(results, indent=2) + "\n")


@contextmanager
def server(target: str) -> Iterator[dict[str, Any]]:
    """What the target needs running, and where it is."""
    if target == "postgres":
        with Postgres.start() as postgres:
            yield {"dsn": postgres.dsn}
    elif target == "mariadb":
        with MariaDb.start(settings={"innodb-buffer-pool-size": "512M"}) as mariadb:
            yield {"login": mariadb.login}
    else:
        yield {}


def run(target: str, given: dict[str, Any]) -> dict[str, Any]:
    """Both sides of one target in a process of their own; its last line is JSON. Logins go by its input, not by its
    arguments, which everybody can read."""
    done = subprocess.run(
        [sys.executable, str(HERE / "sinks_variant.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{target} failed with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def judged(target: str, told: dict[str, Any]) -> dict[str, Any]:
    rates = {side: statistics.median(one["rows_per_second"] for one in own) for side, own in told["rounds"].items()}
    ratio = rates["penstock"] / rates["spark"]
    return {
        "rows_per_second": rates,
        "ratio": round(ratio, 3),
        "wanted": WANTED[target],
        "held": ratio >= WANTED[target],
        **told,
    }


def said(target: str, one: dict[str, Any]) -> str:
    word = "held" if one["held"] else "MISSED"
    return f"{NAMES[target]}: {one['ratio']:.2f} times Spark's {one['spark_writer']} (target {one['wanted']}): {word}"


def show(results: dict[str, Any], rows: int) -> None:
    table = Table(title=f"{rows:,} rows of 6 columns, steady state")
    for column in ("into", "Penstock, exactly once", "Spark", "its writer", "ratio", "target"):
        table.add_column(column)
    for target, one in results.items():
        rates = one["rows_per_second"]
        table.add_row(
            NAMES[target],
            f"{rates['penstock']:,.0f} rows/s",
            f"{rates['spark']:,.0f} rows/s",
            one["spark_writer"],
            f"{one['ratio']:.2f}",
            f"{one['wanted']}: {'held' if one['held'] else 'MISSED'}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
