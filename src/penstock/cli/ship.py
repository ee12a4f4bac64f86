"""`penstock run --master`: what executors elsewhere need goes with the job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import typer

from penstock.cli.output import Output
from penstock.config.levels import OPTIONS_VARIABLE, from_options

_PYTHON = "PYSPARK_PYTHON"


def ship_environment(script: Path, master: str | None, archive: Path | None, *, wanted: bool | None) -> None:
    """Let the job's executors run out of `archive`, or of one that is built now for `script`, unless their master is on
    this machine and nobody asked for it. Where the user has said which Python they use, nothing is shipped, either.
    `ArchiveMismatch` for an archive that cannot work."""
    from penstock import __version__
    from penstock.spark.masters import is_local, runs_here
    from penstock.supply import pack, shipping

    if archive is None and wanted is None and (master is None or runs_here(master) or _PYTHON in os.environ):
        return
    if is_local(master or "local"):
        raise typer.BadParameter("there is nobody to ship to; give --master spark://HOST:PORT.", param_hint="--pack")
    if archive is not None:
        made = pack.require_fitting(archive, __version__)
    else:
        Output.for_people().line("Packing what executors need …")
        made = pack.build(__version__, None, script)
    given = dict(from_options().values)
    os.environ[OPTIONS_VARIABLE] = json.dumps(
        {**given, **shipping.settings(made.path, given.get(shipping.ARCHIVES, ""))}
    )
    os.environ.update(shipping.environment())
