"""`penstock drill`: runs a job under real faults and once more in calm, into outputs of its own, and names mistakes."""

from __future__ import annotations

import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, Output
from penstock.cli.run import Settings, parse_options


def drill(
    script: Annotated[
        Path, typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job to drill.")
    ],
    seconds: Annotated[float, typer.Option(min=20, metavar="N", help="How long it may take.")] = 180,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Draws the faults; left out: a new one.")] = None,
    faults: Annotated[
        str, typer.Option(metavar="KINDS", help="Of kill, stop and step, with commas.")
    ] = "kill,stop,step",
    restart: Annotated[
        str, typer.Option(metavar="COMMAND", help="A further fault: runs this, such as the restart of a broker.")
    ] = "",
    ordered: Annotated[bool, typer.Option("--ordered", help="Rows of a key come in order, and must leave so.")] = False,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="The report as a page.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For checkpoints and logs of both runs, which then stay.")
    ] = None,
    options: Settings = None,
    as_json: Json = False,
) -> None:
    """Run a job under real faults, into outputs of its own, and name what it loses, doubles or cannot repeat.

    Its functions run for real: what they send, they send. Exit status: 0 nothing is wrong, 1 mistakes, 3 something
    could not be judged.
    """
    from penstock.cli.audit import columns_of
    from penstock.cli.program import load_job
    from penstock.config.levels import Texts, from_file, from_options, using
    from penstock.drill.run import KINDS
    from penstock.drill.verdict import Drill, page_of

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what the drill has started ends with it
    output, kinds = Output.choose(as_json), [kind.strip() for kind in faults.split(",")]
    if wrong := [kind for kind in kinds if kind not in KINDS[:-1]]:
        raise typer.BadParameter(f"{wrong[0]!r} is none of {', '.join(KINDS[:-1])}.", param_hint="--faults")
    given, number = parse_options(options), secrets.randbelow(10**6) if seed is None else seed
    with output.working(f"Drilling {script.name} with --seed {number} ..."):
        with using(Texts("-D", {**from_options().values, **given}), from_file()):
            job = load_job(script)
        drilling = Drill(job, script, given, columns_of(job), number)
        result = drilling.run(seconds, kinds, restart, ordered=ordered, folder=folder)
    if html_file is not None:
        html_file.write_text(page_of(result), encoding="utf-8")
    if as_json:
        output.record("Drill", result.to_dict())
    else:
        output.table(f"Faults, drawn by --seed {number}", result.drilled.faults)
        output.table("Mistakes", result.to_dict()["mistakes"])
        output.table("Not judged", [{"what": what} for what in result.not_judged])
        output.line(result.verdict)
    raise typer.Exit(result.status)
