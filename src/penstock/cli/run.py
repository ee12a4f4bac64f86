"""`penstock run JOB.py`: what `python JOB.py` does, with the environment set up, errors shown as sentences, and a
supervisor that starts the job again when its process dies."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.config.load import FILE_VARIABLE, OPTIONS_VARIABLE, from_options
from penstock.runtime import program

if TYPE_CHECKING:
    from penstock.runtime.restart import RestartStrategy

#: Everything after the script's name is the script's own, options included.
PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def run(
    script: Annotated[
        Path, typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job to run.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Given to the job.")] = None,
    supervise: Annotated[
        bool, typer.Option("--supervise/--no-supervise", help="Start the job again when its process dies.")
    ] = True,
    options: Annotated[
        list[str] | None, typer.Option("-D", metavar="KEY=VALUE", help="A setting; it wins over code and file.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, readable=True, help="The configuration file."),
    ] = None,
) -> None:
    """Run a job written in Python.

    The file runs as the main program. If it only defines one Job at module level and does not run it, it is run.
    """
    _hand_over(options or [], config)
    if supervise:
        from penstock.runtime.supervisor import Supervisor, command

        _speak()
        sys.exit(Supervisor(command(script, arguments or []), _strategy()).run())
    sys.exit(program.run(script, arguments or []))


def _hand_over(options: list[str], config: Path | None) -> None:
    """Put `-D` and `--config` where the job looks for them, on top of what is there already."""
    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE.", param_hint="-D")
        given[key.strip()] = value.strip()
    if given:
        os.environ[OPTIONS_VARIABLE] = json.dumps({**from_options().values, **given})
    if config is not None:
        os.environ[FILE_VARIABLE] = str(config.absolute())


def _strategy() -> RestartStrategy:
    """As far as it is known before the job has spoken. What is wrong with the settings is an error now; what is only
    worth a remark, the job itself says."""
    from penstock.config.settings import resolve

    log = logging.getLogger("penstock")
    log.disabled = True
    try:
        return resolve().restart
    finally:
        log.disabled = False


def _speak() -> None:
    """The supervisor's lines go to stderr, among the job's own."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("penstock.supervisor")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
