"""`penstock dev`: the development broker, the locked jars and Java."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.output import Json, Output
from penstock.cli.usage import Group

app = typer.Typer(help="Development tools: a Kafka broker, the locked jars, Java.", no_args_is_help=True)
kafka = typer.Typer(help="A real Kafka broker on this machine, in the background.", no_args_is_help=True)
app.add_typer(kafka, name="kafka", cls=Group)


@kafka.command("up")
def kafka_up(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on. Left out: 9092, or a free one where that is taken."),
    ] = None,
    json: Json = False,
) -> None:
    """Start the broker unless it runs already."""
    from penstock.dev import kafka as broker

    Output.choose(json).record("Development Kafka", asdict(broker.up(port)))


@kafka.command("down")
def kafka_down(json: Json = False) -> None:
    """Stop the broker; its topics stay for the next time."""
    from penstock.dev import kafka as broker

    Output.choose(json).record("Development Kafka", asdict(broker.down()))


@kafka.command("status")
def kafka_status(json: Json = False) -> None:
    """Show whether the broker runs, and where. Exit status 1 when it does not."""
    from penstock.dev import kafka as broker

    now = broker.status()
    Output.choose(json).record("Development Kafka", asdict(now))
    if not now.running:
        raise typer.Exit(1)


@app.command("jars")
def jars(
    names: Annotated[list[str] | None, typer.Argument(metavar="SET", help="Fetched; all when none is named.")] = None,
    json: Json = False,
) -> None:
    """Fetch the locked jars into the cache; does nothing when they are there."""
    from penstock.supply.jars import DEFAULT_SETS, is_present, jar_folder, jar_set, locked

    output = Output.choose(json)
    rows = []
    for name in names or DEFAULT_SETS:
        had = is_present(name)
        if not had:
            output.line(f"Fetching {len(locked()[name])} jars of {name} …")
        files = jar_set(name)
        megabytes = round(sum(jar.size for jar in locked()[name]) / 1e6, 1)
        content = {"set": name, "jars": len(files), "megabytes": megabytes}
        rows.append({**content, "fetched": not had, "folder": str(jar_folder(name))})
    output.table("Locked jars", rows)


@app.command("java")
def java(json: Json = False) -> None:
    """Show the Java that Spark and the broker will run on."""
    from penstock.supply.java import find_java

    home = find_java()
    Output.choose(json).record("Java", {"home": str(home.home), "version": home.version, "found_by": home.origin})
