"""`penstock dev`: the development servers, the locked jars, Java."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import Output

app = typer.Typer(
    help="Development tools: a Kafka broker, a Spark cluster, an S3 server, the locked jars, Java.",
    no_args_is_help=True,
)
kafka = typer.Typer(help="A real Kafka broker on this machine, in the background.", no_args_is_help=True)
app.add_typer(kafka, name="kafka")
spark = typer.Typer(help="A real Spark standalone cluster on this machine, in the background.", no_args_is_help=True)
app.add_typer(spark, name="spark")
s3 = typer.Typer(help="A real S3 server on this machine, in the background.", no_args_is_help=True)
app.add_typer(s3, name="s3")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@kafka.command("up")
def kafka_up(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on. Left out: 9092, or a free one where that is taken."),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="How many brokers, as one cluster. Left out: one, or those that run."),
    ] = None,
    json: Json = False,
) -> None:
    """Start the broker, or several as one cluster, or find them running."""
    from penstock.dev.servers import service

    Output.choose(json).record("Development Kafka", service.as_dict(service.up(port, brokers)))


@kafka.command("down")
def kafka_down(json: Json = False) -> None:
    """Stop the broker; its topics stay for the next time."""
    from penstock.dev.servers import service

    Output.choose(json).record("Development Kafka", service.as_dict(service.down()))


@kafka.command("status")
def kafka_status(json: Json = False) -> None:
    """Say whether the broker runs, and where. Exit status 1 when it does not."""
    from penstock.dev.servers import service

    now = service.status()
    Output.choose(json).record("Development Kafka", service.as_dict(now))
    if not now.running:
        raise typer.Exit(1)


@spark.command("up")
def spark_up(
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many workers.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each worker.")] = 1,
    executor_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory that each worker gives to executors, such as 2g.")
    ] = "1g",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The master's. Left out: 7077, or a free one where that is taken."),
    ] = None,
    json: Json = False,
) -> None:
    """Start a master and its workers, or find them running."""
    from penstock.dev.servers import spark_service as service

    found = service.up(workers=workers, cores=cores, memory=executor_memory, port=port)
    Output.choose(json).record("Development Spark", service.as_dict(found))


@spark.command("down")
def spark_down(json: Json = False) -> None:
    """Stop the cluster and whatever executors it has."""
    from penstock.dev.servers import spark_service as service

    Output.choose(json).record("Development Spark", service.as_dict(service.down()))


@spark.command("status")
def spark_status(json: Json = False) -> None:
    """Say whether the cluster runs, and with how many workers. Exit status 1 when it does not."""
    from penstock.dev.servers import spark_service as service

    now = service.status()
    Output.choose(json).record("Development Spark", service.as_dict(now))
    if not now.running:
        raise typer.Exit(1)


@s3.command("up")
def s3_up(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on. Left out: 8333, or a free one where that is taken."),
    ] = None,
    json: Json = False,
) -> None:
    """Start the server, or find it running; its keys are in a file of its folder."""
    from penstock.dev.servers import s3_service
    from penstock.dev.servers.service import as_dict

    Output.choose(json).record("Development S3", as_dict(s3_service.up(port)))


@s3.command("down")
def s3_down(json: Json = False) -> None:
    """Stop the server; its buckets stay for the next time."""
    from penstock.dev.servers import s3_service
    from penstock.dev.servers.service import as_dict

    Output.choose(json).record("Development S3", as_dict(s3_service.down()))


@s3.command("status")
def s3_status(json: Json = False) -> None:
    """Say whether the server runs, and where. Exit status 1 when it does not."""
    from penstock.dev.servers import s3_service
    from penstock.dev.servers.service import as_dict

    now = s3_service.status()
    Output.choose(json).record("Development S3", as_dict(now))
    if not now.running:
        raise typer.Exit(1)


@app.command("jars")
def jars(
    names: Annotated[list[str] | None, typer.Argument(help="Sets to fetch; all when none is named.")] = None,
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
        found = jar_set(name)
        size = sum(jar.size for jar in locked()[name])
        rows.append(
            {
                "set": name,
                "jars": len(found),
                "megabytes": round(size / 1e6, 1),
                "fetched": not had,
                "folder": str(jar_folder(name)),
            }
        )
    output.table("Locked jars", rows)


@app.command("java")
def java(json: Json = False) -> None:
    """Show the Java that Spark and the broker will run on."""
    from penstock.supply.java import find_java

    found = find_java()
    Output.choose(json).record("Java", {"home": str(found.home), "version": found.version, "found_by": found.origin})
