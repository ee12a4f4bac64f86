"""`penstock audit` and `penstock drill`: is every row of a job there once, beside its ledger and under faults."""

from __future__ import annotations

import io
import secrets
import signal
import sys
from collections.abc import Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import gmtime, sleep, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, Output
from penstock.cli.run import Settings, job_file, parse_options

if TYPE_CHECKING:
    from penstock.audit.report import Report
    from penstock.job.job import Job

_FOLLOW_SECONDS = 5.0


def audit(
    job: Annotated[str, typer.Argument(metavar="JOB|JOB.py", help="A job's file, or the name or id of a run.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on, and show what is new, until Ctrl-C.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The report as JSON.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="The report as a page.")] = None,
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics", metavar="FILE", help="Unaccounted rows, for a collector of text files.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Other programs write to the same places; their rows are no finding.")
    ] = False,
) -> None:
    """Compare what is visible in a job's sinks with its ledger: rows and checksums of every writer of every epoch.

    Exit status: 0 all rows are accounted for, 1 some are not, 3 something cannot be proven.
    """
    from penstock.audit.report import Audit
    from penstock.cli.jobs import find_entry
    from penstock.cli.program import load_job
    from penstock.engine.settlement import JobLedgers
    from penstock.ops.server.history import keep_audit

    output, entry = Output(), find_entry(job) if Path(job).suffix != ".py" else None
    loaded = load_job(Path(job if entry is None else entry.script))
    storage = (entry and entry.storage) or loaded.checkpoints.storage
    location = f"{storage.rstrip('/')}/{loaded.name}"
    ledgers = JobLedgers.at(location, loaded.spark)
    auditor = Audit(ledgers, loaded._sinks, columns_of(loaded), shared=shared)
    seen: set[Any] = set()
    while True:
        with output.working(f"Reading the sinks of {loaded.name} …"):
            report = auditor.run()
        page = partial(page_of, report)
        for file, text in ((json_file, report.to_json), (html_file, page), (metrics_file, report.to_metrics)):
            if file is not None:
                file.write_text(text(), encoding="utf-8")
        if entry is not None:
            keep_audit(entry.id, report.to_json())
        render(output, report, seen)
        seen |= {*report.findings, None}
        if not follow:
            break
        sleep(_FOLLOW_SECONDS)
    output.line(report.verdict)
    raise typer.Exit(report.status)


def render(output: Output, report: Report, seen: Collection[Any] = ()) -> None:
    """The sinks, the first time, and the findings that were not `seen`."""
    if not seen:
        output.table(f"Audit of {report.job}", report.sinks)
    if fresh := [asdict(finding) for finding in report.findings if finding not in seen]:
        output.table("Findings", fresh)


def page_of(report: Report) -> str:
    """The same as HTML."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=200)
    render(Output(console), report)
    Output(console).line(f"{report.verdict} {strftime('%Y-%m-%d %H:%M:%S UTC', gmtime(report.at))}")
    return console.export_html()


def columns_of(job: Job) -> dict[str, Any]:
    """What the program writes into the sink of each query, as Arrow has it. Left out where only the sink knows: of an
    epoch function, and where it turns columns into JSON."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    columns: dict[str, Any] = {}
    for plan in job._plans.values():
        if plan.aside is not None:
            columns[plan.aside.uid] = [pa.field("value", pa.string(), nullable=False)]
        for uid, sink in list(plan.sinks.items())[:1] if plan.as_it_is else ():
            fields, before = sink.shape(plan.frame).schema.fields, plan.frame.schema.fields
            if [field.dataType for field in fields] == [field.dataType for field in before]:
                columns[uid] = [pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC"), f.nullable) for f in fields]
    return columns


def drill(
    script: Annotated[Path, job_file("The job to drill.")],
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
    from penstock.cli.program import load_job
    from penstock.config.levels import Texts, from_file, from_options, using
    from penstock.drill.run import KINDS
    from penstock.drill.verdict import Drill
    from penstock.drill.verdict import page_of as drill_page

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
        html_file.write_text(drill_page(result), encoding="utf-8")
    if as_json:
        output.record("Drill", result.to_dict())
    else:
        output.table(f"Faults, drawn by --seed {number}", result.drilled.faults)
        output.table("Mistakes", result.to_dict()["mistakes"])
        output.table("Not judged", [{"what": what} for what in result.not_judged])
        output.line(result.verdict)
    raise typer.Exit(result.status)
