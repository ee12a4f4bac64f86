"""A real job, killed again and again, whose outputs are then checked row by row: `make demo`.

    python -m tests.support.demo --rows 50000 --kills 3

`run` decides when to kill, kills, restarts and shows it; `result` reads the outputs and judges them.
"""

from __future__ import annotations

import argparse
import sys

from penstock.cli.program import prepare_environment
from tests.support.demo.run import DemoOptions, run_demo


def options(arguments: list[str]) -> DemoOptions:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="how many rows go through the job")
    parser.add_argument("--kills", type=int, default=5, help="how often it is killed with SIGKILL on the way")
    parser.add_argument("--seed", type=int, help="makes the same rows and kills again")
    parser.add_argument("--keep", action="store_true", help="leave the folder with all files for a look")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return DemoOptions(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    prepare_environment()
    sys.exit(run_demo(options(sys.argv[1:])))
