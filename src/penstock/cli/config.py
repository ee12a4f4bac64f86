"""`penstock config`: every setting, its value, and where it came from."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Output
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.config.settings import Settings


def config(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB.py]", exists=True, dir_okay=False, readable=True, help="A job, for what it says."),
    ] = None,
    define: Annotated[
        list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A setting; wins over code and file.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Instead of penstock.yaml in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Show every setting, its value, and where it came from: -D, code, file or default.

    A job's file is loaded but not run, so only a Job at module level is seen.
    """
    from penstock.config.load import FILE_VARIABLE, OPTIONS_VARIABLE, from_options
    from penstock.config.settings import resolve

    if file is not None:
        os.environ[FILE_VARIABLE] = str(file)
    if define:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**from_options().values, **_pairs(define)})
    settings = resolve() if script is None else _of_job(script)
    Output.choose(as_json).table("Settings", settings.rows())


def _pairs(define: list[str]) -> dict[str, str]:
    pairs = {}
    for text in define:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(
                f"-D {text} is not a setting.", safe="nothing was started.", to_do="write -D key=value."
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _of_job(script: Path) -> Settings:
    from penstock.job import Job
    from penstock.runtime.program import prepare_environment

    prepare_environment()
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.absolute().parent))
    names = runpy.run_path(str(script), run_name="penstock_config")
    jobs = {id(value): value for value in names.values() if isinstance(value, Job)}
    if len(jobs) != 1:
        raise ConfigurationError(
            f"{script} has {len(jobs)} jobs at module level when it is loaded and not run; one is needed.",
            safe="nothing was started.",
            to_do='make the Job at module level and call run() under `if __name__ == "__main__":`.',
        )
    return next(iter(jobs.values())).settings
