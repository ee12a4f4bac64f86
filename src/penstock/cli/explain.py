"""`penstock explain`, `check`, `config` and `state`: what a job guarantees, whether the systems it uses allow that, its
settings, and the state it keeps, without running it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, Output
from penstock.cli.run import Settings, parse_options
from penstock.progress import Counter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.savepoints.stores import StateRows

_SCRIPT = typer.Argument(metavar="JOB.py", exists=True, dir_okay=False, readable=True, help="The job; it is not run.")


def explain(script: Annotated[Path, _SCRIPT], as_json: Json = False) -> None:
    """Show the chain of each query, what each link promises and why, and the weakest."""
    from penstock.cli.program import load_job

    job, rows = load_job(script), []
    for query, chain in job.chains().items():
        for link in chain.links:
            weakest = link is chain.weakest
            row = {
                "query": query, "link": link.kind, "name": link.name, "guarantee": str(link.guarantee),
                "because": link.because, "weakest": weakest, "lift": link.lift if weakest else "",
            }  # fmt: skip
            rows.append(row)
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


def state(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A savepoint, STORAGE/JOB, STORAGE/JOB/chk-N, or a checkpoint of Spark's."),
    ],
    query: Annotated[str | None, typer.Option("--query", metavar="UID", help="Of this query only.")] = None,
    operator: Annotated[int | None, typer.Option("--operator", metavar="N", help="Show rows of this operator.")] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="NAME", help="Show rows of this store.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="JSON", help="Show the row under this key: its value, or an object.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many rows.")] = 20,
    count: Annotated[bool, typer.Option("--count", help="Count the rows of every store; reads them all.")] = False,
    as_json: Json = False,
) -> None:
    """Show the stateful operators under a path: what they keep, in which columns, and how much.

    With --operator, --store or --key, show rows. The job is not started; Spark is, where rows are not in Parquet.
    """
    from penstock.savepoints.stores import choose_rows, count_rows, find_places, list_rows, read_rows
    from penstock.storage.storage import local_path

    output = Output.choose(as_json)
    stores = [
        entry for place in find_places(path, None if local_path(path) else _session()) for entry in list_rows(place)
    ]
    if operator is None and store is None and key is None:
        chosen = [entry for entry in stores if query is None or entry.place.query == query]
        counts = [entry.rows for entry in chosen]
        if count:
            with output.progress("Counting rows") as display:
                counter = Counter(display, "counting", len(chosen), "stores")
                for place, entry in enumerate(chosen):
                    counts[place] = count_rows(entry, _session)
                    counter.add()
        output.table("State", [_row(entry, number) for entry, number in zip(chosen, counts, strict=True)])
        return
    entry = choose_rows(stores, query, operator, store)
    with output.working("reading state"):
        rows = read_rows(entry, key, limit, _session)
    if not rows:
        output.table("Rows", []) if as_json else output.line("There is no such row.")
        return
    title = f"Operator {entry.operator.id} ({entry.operator.name}), {entry.name}"
    output.table(title, rows if as_json else [_flat(row) for row in rows])


def _row(entry: StateRows, rows: int | None) -> dict[str, Any]:
    place, operator, family = entry.place, entry.operator, entry.family
    return {
        **({} if place.query is None else {"query": place.query}),
        "epoch": place.batch, "operator": operator.id, "name": operator.name, "store": entry.name,
        "backend": entry.backend, "partitions": entry.partitions, "bytes": entry.bytes, "rows": rows,
        "key": _columns(family.key), "value": _columns(family.value),
    }  # fmt: skip


def _columns(schema: dict[str, Any]) -> str:
    from pyspark.sql.types import StructType

    return StructType.fromJson(schema).simpleString().removeprefix("struct<").removesuffix(">")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of key and value side by side; a value's column that the key has too gets a prefix."""
    flat = dict(row.get("key") or {})
    for name, value in (row.get("value") or {}).items():
        flat[f"value.{name}" if name in flat else name] = value
    return flat


def _session() -> SparkSession:
    from penstock.spark.session import running_session, session

    return running_session() or session("penstock state", conf={}, jars=[], local_storage=True)
