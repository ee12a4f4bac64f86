"""`penstock explain`, `check` and `config`: what a job guarantees and needs, and its settings, without running it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, Output
from penstock.cli.run import Settings, parse_options

_SCRIPT = typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job; it is not run.")


def explain(script: Annotated[Path, _SCRIPT], as_json: Json = False) -> None:
    """Show the chain of each query, what each link promises and why, and the weakest."""
    from penstock.cli.program import load_job

    job, rows = load_job(script), []
    for query, chain in job.chains().items():
        for link in chain.links:
            weakest = link is chain.weakest
            rows.append({
                "query": query, "link": link.kind, "name": link.name, "guarantee": str(link.guarantee),
                "because": link.because, "weakest": weakest, "lift": link.lift if weakest else "",
            })  # fmt: skip
    output = Output.choose(as_json)
    output.table("What the job gives", rows)
    if job.settings.availability.cost:
        output.line(job.settings.availability.cost)


def check(script: Annotated[Path, _SCRIPT], as_json: Json = False) -> None:
    """Connect to every source and sink and verify what the job needs of them, writing nothing.

    Exit status 1, with the error, where something cannot work; what is only unwise is listed.
    """
    from penstock.cli.program import load_job

    output = Output.choose(as_json)
    job = load_job(script)
    for chain in job.chains().values():
        job.require(chain)
    findings = [{"name": finding.sink, "warning": finding.message} for finding in job.check()]
    output.table("Works, but", findings) if findings or as_json else output.line("Everything the job needs is there.")


def config(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="A job, for what it says."),
    ] = None,
    define: Settings = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Instead of penstock.yaml in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every setting, its value, and where it came from: -D, code, file or default.

    A job's file is loaded but not run, so only a Job at module level is seen.
    """
    from penstock.cli.program import load_job
    from penstock.config.levels import FILE_VARIABLE, Texts, from_file, from_options, using
    from penstock.config.resolve import resolve

    if file is not None:
        os.environ[FILE_VARIABLE] = str(file)
    with using(Texts("-D", {**from_options().values, **parse_options(define)}), from_file()):
        settings = resolve() if script is None else load_job(script).settings
    Output.choose(as_json).table("Settings", settings.rows())
