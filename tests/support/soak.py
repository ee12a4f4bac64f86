"""The demo, for long, with its result kept: `python -m tests.support.soak --rows 5000000 --kills 60 [--seed N]`."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from penstock.cli.program import prepare_environment
from tests.support.demo.run import Demo, DemoOptions
from tests.support.proof import recorded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(1_000_000)
    prepare_environment()
    command = f'make soak SOAK="--rows {given.rows} --kills {given.kills} --seed {seed}"'
    with recorded(given.record, "the demo", command, seed) as numbers, tempfile.TemporaryDirectory() as folder:
        result = Demo(DemoOptions(rows=given.rows, kills=given.kills, seed=seed), Path(folder)).play()
        verdicts = {name: verdict.to_dict() for name, verdict in result.verdicts.items()}
        numbers |= {"ok": result.ok, "error": result.error, "epochs": result.epochs, **verdicts}
        numbers |= {"kills": len(result.killed_after), "recoveries": len(result.recovery_seconds)}
    sys.stdout.write("\n".join(result.lines()) + "\n")
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
