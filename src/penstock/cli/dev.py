"""`penstock dev`: the development broker, the locked jars, Java and its class archives."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli.output import Json, Output
from penstock.cli.usage import Group

app = typer.Typer(
    help="Development tools: a Kafka broker, the locked jars, Java and its class archives.", no_args_is_help=True
)
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


Servers = Annotated[
    str | None, typer.Option("--servers", metavar="HOST:PORT", help="Another broker than the development one.")
]
Partitions = Annotated[int, typer.Option(min=1, help="Of topics that are created.")]
Rows = Annotated[int | None, typer.Option(min=1, help="End after so many. Left out: go on until Ctrl-C.")]


@kafka.command("topics")
def kafka_topics(
    create: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Created, where it is missing.")] = None,
    partitions: Partitions = 4,
    servers: Servers = None,
    json: Json = False,
) -> None:
    """List topics with their rows; create those that are named."""
    from penstock.dev import kafka as broker

    servers = broker.servers_of(servers)
    with broker.named_errors(servers, "listing topics"):
        broker.create_topics(servers, create or [], partitions)
        Output.choose(json).table("Topics", broker.list_topics(servers))


@kafka.command("produce")
def kafka_produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Created, where it is missing.")],
    rows: Rows = None,
    rate: Annotated[float, typer.Option(min=0, help="Rows a second; 0: as fast as it goes.")] = 10,
    stdin: Annotated[bool, typer.Option("--stdin", help="Send the lines of standard input.")] = False,
    partitions: Partitions = 4,
    servers: Servers = None,
    json: Json = False,
) -> None:
    """Fill a topic with payments in JSON, or with lines of your own."""
    from penstock.dev import kafka as broker

    servers, output, sent = broker.servers_of(servers), Output.choose(json), 0
    source = ((None, line.rstrip("\n")) for line in sys.stdin) if stdin else broker.payments()
    with broker.named_errors(servers, f"writing to {topic!r}"):
        broker.create_topics(servers, [topic], partitions)
        try:
            for sent in broker.produce(servers, topic, itertools.islice(source, rows), rate):
                output.line(f"{sent:,} rows in {topic}")
        except KeyboardInterrupt:
            pass
    output.record("Rows", {"topic": topic, "sent": sent, "servers": servers})


@kafka.command("consume")
def kafka_consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    rows: Rows = None,
    until_end: Annotated[bool, typer.Option("--until-end", help="End where the topic ends now.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="Begin at the end of the topic.")] = False,
    uncommitted: Annotated[bool, typer.Option("--uncommitted", help="Open and aborted transactions, too.")] = False,
    servers: Servers = None,
    json: Json = False,
) -> None:
    """Print a topic's rows as a read_committed reader gets them, from its beginning."""
    from penstock.dev import kafka as broker

    servers, output = broker.servers_of(servers), Output.choose(json)
    with broker.named_errors(servers, f"reading {topic!r}"):
        found = broker.consume(servers, topic, follow=not until_end, newest=newest, committed=not uncommitted)
        try:
            for row in itertools.islice(found, rows):
                output.row(row, f"{row['key'] or '-'}  {row['value'] or '-'}")
        except KeyboardInterrupt:
            pass


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


@app.command("archive")
def archive(json: Json = False) -> None:
    """Write archives of Java's classes, so that drivers start faster; does nothing when they are there."""
    from penstock.supply.jars import DEFAULT_SETS

    output = Output.choose(json)
    output.line("Archiving the classes of Spark and its connectors …")
    sets = [[], *([name] for name in DEFAULT_SETS if name.startswith("spark-"))]
    command = [sys.executable, "-m", "penstock.spark.warm_up"]
    running = [subprocess.Popen([*command, *names], stdout=subprocess.PIPE, text=True) for names in sets]
    paths = [process.communicate()[0].strip() for process in running]
    output.table(
        "Class archives", [{"jars": " ".join(n) or "none", "file": p} for n, p in zip(sets, paths, strict=True)]
    )
    if any(process.returncode for process in running):
        raise typer.Exit(1)
