"""`python -m penstock.dev.demo.start CONFIG.json`: the demo's job, with Java started ahead from its second run on."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.supply import early

if __name__ == "__main__":
    early.begin(Path(sys.argv[1]))
    from penstock.dev.demo.job import build, end_with_parent
    from penstock.dev.demo.job_process import JobConfig

    end_with_parent()
    build(JobConfig.read(Path(sys.argv[1]))).run()
