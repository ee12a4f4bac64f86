"""`penstock demo`: kill a job again and again, and count what came out."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    rows: Annotated[int, typer.Option(min=1, help="How many rows go through the job.")] = 200_000,
    kills: Annotated[int, typer.Option(min=0, help="How often it is killed with SIGKILL on the way.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    seed: Annotated[int | None, typer.Option(help="Makes the same rows and kills again.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder with all files for a look.")] = False,
) -> None:
    """Show it: a job is killed again and again, and every row still comes out exactly once."""
    from penstock.cli.program import prepare_environment
    from penstock.dev.demo.run import DemoOptions, run_demo

    prepare_environment()
    status = run_demo(DemoOptions(rows=rows, kills=kills, json=json, seed=seed, keep=keep))
    raise typer.Exit(status)
