"""`python -m penstock.cli.supervised JOB.py [ARGS]`: the driver as a supervisor starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.ops.process import lifeline
from penstock.supply import early

if __name__ == "__main__":
    lifeline.connect()
    early.begin(Path(sys.argv[1]))
    from penstock.cli import program  # while Java starts

    sys.exit(program.run(Path(sys.argv[1]), sys.argv[2:]))
