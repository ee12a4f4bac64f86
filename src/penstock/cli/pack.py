"""`penstock pack`: the PEX file that executors of a cluster run out of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import Json, Output

DEFAULT = Path("penstock-env.pex")
_JOB_HELP = "The job: what it imports is packed, and of Penstock's extras only what it uses."


def pack(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB.py]", exists=True, dir_okay=False, readable=True, help=_JOB_HELP),
    ] = None,
    target: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = DEFAULT,
    more: Annotated[
        list[str] | None, typer.Option("--with", metavar="PACKAGE", help="An installed package that no import names.")
    ] = None,
    json: Json = False,
) -> None:
    """Pack Penstock and what a job imports into one file, for workers that have Python and none of it.

    Prints the line for spark-submit. `penstock run --master` does all of it by itself.
    """
    from penstock import __version__
    from penstock.supply.pack import build

    pack = build(__version__, target, script, more or ())
    submit = pack.submit_line("spark://HOST:7077", script.name if script is not None else "JOB.py")
    facts = {"archive": str(pack.path), "megabytes": round(pack.path.stat().st_size / 1e6, 1)}
    facts |= {name: pack.manifest[name] for name in ("python", "platform")}
    Output.choose(json).record("Archive", {**facts, "packages": pack.packages, "submit": submit})
