"""The demo, for long, with its result kept: `python -m tests.support.soak --rows 5000000 --kills 60 [--seed N]`."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from penstock.cli.program import prepare_environment
from penstock.dev.demo import run
from penstock.dev.demo.result import DemoResult
from tests.support.proof import recorded

_KEPT = (
    "rows_in",
    "rows_out",
    "lost",
    "duplicated",
    "unexpected",
    "totals_wrong",
    "totals_duplicated",
    "kills",
    "recoveries",
    "epochs",
    "error",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(1_000_000)
    results: list[DemoResult] = []

    class View(run.View):
        def verdict(self, result: DemoResult) -> None:
            super().verdict(result)
            results.append(result)

    run.View = View  # type: ignore[misc]
    prepare_environment()
    command = f'make soak SOAK="--rows {given.rows} --kills {given.kills} --seed {seed}"'
    with recorded(given.record, "the demo", command, seed) as numbers:
        status = run.run_demo(run.DemoOptions(rows=given.rows, kills=given.kills, seed=seed))
        if results:
            told = results[0].to_dict()
            numbers |= {"ok": results[0].ok, **{name: told[name] for name in _KEPT}}
    return status


if __name__ == "__main__":
    sys.exit(main())
