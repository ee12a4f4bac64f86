"""`penstock run JOB.py`: what `python JOB.py` does, with the environment set up and errors shown as sentences."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigurationError

#: Everything after the script's name is the script's own, options included.
PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def run(
    script: Annotated[
        Path, typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job to run.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Given to the job.")] = None,
) -> None:
    """Run a job written in Python.

    The file runs as the main program. If it only defines one Job at module level and does not run it, it is run.
    """
    prepare_environment()
    execute(script, arguments or [])


def prepare_environment() -> None:
    """Let Spark's workers use this very Python, and Spark find a Java; what the user has set stays."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from penstock.runtime.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().home)


def execute(script: Path, arguments: list[str]) -> None:
    """Run `script` as `__main__`, then the one Job it defined, unless it has run it itself."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.absolute().parent))  # as Python does for a script, so its neighbours import
    names = runpy.run_path(str(script), run_name="__main__")
    waiting = _not_run(names)
    if len(waiting) > 1:
        raise ConfigurationError(
            f"{script} defines {len(waiting)} jobs and runs none of them: {', '.join(sorted(waiting))}.",
            safe="Nothing was started.",
            to_do='Call run() on the one you mean, under `if __name__ == "__main__":`.',
        )
    for job in waiting.values():
        job.run()


def _not_run(names: dict[str, Any]) -> dict[str, Any]:
    module = sys.modules.get("penstock.job")  # a script that never imported Job cannot have defined one
    if module is None:
        return {}
    jobs = {id(value): (name, value) for name, value in names.items() if isinstance(value, module.Job)}
    if any(job.started for _, job in jobs.values()):
        return {}
    return dict(jobs.values())
