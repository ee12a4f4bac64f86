"""A job's file, run as the main program, and its end as an exit status."""

from __future__ import annotations

import logging
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import logs
from penstock.config.levels import from_file, from_options
from penstock.config.operations import FORMAT, LogFormat
from penstock.engine.restarts import classify
from penstock.errors import ConfigurationError, PenstockError
from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import status_of
from penstock.secrets import masked

if TYPE_CHECKING:
    from penstock.job.job import Job


def prepare_environment() -> None:
    """Let Spark's workers use this very Python, and Spark find a Java; what the user has set stays."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from penstock.supply.java import find_java

    os.environ["JAVA_HOME"] = str(find_java().home)


def set_up_log() -> bool:
    """Log as JSON from here on where `-D` or the file asks for it; whether they do. What is wrong with them, the job
    itself says."""
    try:
        wanted = {**from_file().values, **from_options().values}.get(FORMAT, "")
    except PenstockError:
        wanted = ""
    if wanted.strip().lower() != LogFormat.JSON:
        logs.mask_log()
        return False
    logs.log_as_json()
    return True


def execute(script: Path, arguments: list[str]) -> None:
    """Run `script` as `__main__`, then the one Job it defined, unless it has run it itself."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.absolute().parent))  # as Python does for a script, so its neighbours import
    names = runpy.run_path(str(script), run_name="__main__")
    waiting = _jobs_not_run(names)
    if len(waiting) > 1:
        raise ConfigurationError(
            f"{script} defines {len(waiting)} jobs and runs none of them: {', '.join(sorted(waiting))}.",
            safe="Nothing was started.",
            to_do='Call run() on the one you mean, under `if __name__ == "__main__":`.',
        )
    for job in waiting.values():
        job.run()


def load_job(script: Path) -> Job:
    """The one Job that `script` makes at module level when it is loaded and not run."""
    from penstock.job.job import Job

    prepare_environment()
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.absolute().parent))
    names = runpy.run_path(str(script), run_name="penstock_loaded")
    jobs = {id(value): value for value in names.values() if isinstance(value, Job)}
    if len(jobs) != 1:
        raise ConfigurationError(
            f"{script} has {len(jobs)} jobs at module level when it is loaded and not run; one is needed.",
            safe="nothing was started.",
            to_do='make the Job at module level and call run() under `if __name__ == "__main__":`.',
        )
    return next(iter(jobs.values()))


def run(script: Path, arguments: list[str]) -> int:
    """Prepare, execute, and say how it ended: see `status_of`. Errors are shown; a status that the program itself
    leaves with is raised as it is."""
    try:
        set_up_log()
        prepare_environment()
        execute(script, arguments)
    except Exception as error:
        lifeline.report_error(error, classify(error))
        _show(error)
        return status_of(error)
    return lifeline.DONE


def _show(error: Exception) -> None:
    if logs.is_json():
        logging.getLogger("penstock").error("the program failed: %s", error, exc_info=error)
    elif isinstance(error, PenstockError):
        from penstock.cli.output import Output

        Output.for_people().error(error)
    elif sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)  # the program has one of its own
    else:  # a stranger's traceback must stay whole
        sys.stderr.write(logs.plain_text(masked("".join(traceback.format_exception(error)))))


def _jobs_not_run(names: dict[str, Any]) -> dict[str, Any]:
    module = sys.modules.get("penstock.job.job")  # a script that never imported Job cannot have defined one
    if module is None:
        return {}
    jobs = {id(value): (name, value) for name, value in names.items() if isinstance(value, module.Job)}
    if any(job.started for _, job in jobs.values()):
        return {}
    return dict(jobs.values())
