"""`penstock config`: every setting, its value, and where it came from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Output
from penstock.errors import ConfigurationError


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
    from penstock.cli.program import load_job
    from penstock.config.load import FILE_VARIABLE, OPTIONS_VARIABLE, from_options
    from penstock.config.settings import resolve

    if file is not None:
        os.environ[FILE_VARIABLE] = str(file)
    if define:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**from_options().values, **_pairs(define)})
    settings = resolve() if script is None else load_job(script).settings
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
