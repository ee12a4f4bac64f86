"""The `penstock` command. Nothing heavy is imported before a command runs, so `penstock --help` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from penstock.cli import audit, dev, jobs, run, show, transactions, ui, usage
from penstock.cli.output import Output
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Exactly-once for PySpark Structured Streaming.",
    epilog=usage.ROOT,
    no_args_is_help=True,
    cls=usage.Group,
    context_settings=usage.NAMES,
    rich_markup_mode=None,  # plain text: its tables cut names to fit 80 columns
    pretty_exceptions_enable=False,  # main() shows our own errors; another library's traceback must stay whole
)
app.command("run", context_settings=run.PASS_ON)(run.run)
app.command("list")(jobs.list_jobs)
command: Callable[..., None]
for command in (jobs.savepoint, jobs.checkpoint, jobs.stop):
    app.command()(command)
app.command("cancel", cls=jobs.WithOptionalValue)(jobs.cancel)
for command in (jobs.logs, show.show, run.config, run.explain, run.check):
    app.command()(command)
for command in (run.pack, ui.ui, audit.audit, audit.drill):
    app.command()(command)
for name, group in (("dev", dev.app), ("transactions", transactions.app)):
    app.add_typer(group, name=name, cls=usage.Group)
usage.give_help(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        Output().line(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Exactly-once delivery, checkpoints and savepoints for PySpark Structured Streaming."""


def main() -> None:
    """The entry point: an error of ours is shown as its three sentences, without a traceback."""
    # What follows `run` belongs to the job; everywhere else --json was meant for us. A job's file replaces argv.
    as_json = "--json" in sys.argv and sys.argv[1:2] != ["run"]
    try:
        app(prog_name="penstock")  # also where another Python program is the entrance
    except PenstockError as error:
        Output.choose(as_json).error(error)
        sys.exit(1)
