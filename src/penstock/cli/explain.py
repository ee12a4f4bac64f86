"""`penstock explain` and `penstock check`: what a job promises, and whether the other systems let it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Output

_SCRIPT = typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job; it is not run.")
_JSON = typer.Option("--json", help="JSON instead of a table.")


def explain(script: Annotated[Path, _SCRIPT], as_json: Annotated[bool, _JSON] = False) -> None:
    """Show the chain of each query, what each link promises and why, and the weakest."""
    from penstock.cli.program import load_job

    rows = []
    for query, chain in load_job(script).chains().items():
        weakest = chain.weakest
        rows += [
            {
                "query": query,
                "link": link.kind,
                "name": link.name,
                "guarantee": str(link.guarantee),
                "because": link.because,
                "weakest": link is weakest,
                "lift": link.lift if link is weakest else "",
            }
            for link in chain.links
        ]
    Output.choose(as_json).table("What the job gives", rows)


def check(script: Annotated[Path, _SCRIPT], as_json: Annotated[bool, _JSON] = False) -> None:
    """Connect to every source and sink and verify what the job needs of them, writing nothing.

    Exit status 1, with the error, where something cannot work; what is only unwise is listed.
    """
    from penstock.cli.program import load_job

    output = Output.choose(as_json)
    job = load_job(script)
    for chain in job.chains().values():
        job.require(chain)
    findings = [{"name": one.sink, "warning": one.message} for one in job.check()]
    output.table("Works, but", findings) if findings or as_json else output.line("Everything the job needs is there.")
