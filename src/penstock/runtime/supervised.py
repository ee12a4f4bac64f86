"""`python -m penstock.runtime.supervised JOB.py [ARGS]`: the driver as a supervisor starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.runtime import lifeline, program

if __name__ == "__main__":
    lifeline.connect()
    sys.exit(program.run(Path(sys.argv[1]), sys.argv[2:]))
