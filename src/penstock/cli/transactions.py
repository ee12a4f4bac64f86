"""`penstock transactions`: what dead jobs left open in other systems, and its end, with the ledger consulted."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Output, duration_text
from penstock.cli.transactions_target import TransactionsTarget, open_target
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.transactions.orphans import Orphan, Report
    from penstock.transactions.settlement import Unprovable

app = typer.Typer(help="What dead jobs left open in other systems, and its end.", no_args_is_help=True)

Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STORAGE/JOB] [ID]...", help="The job's folder (not with --job or --prefix), and ids."),
]
Script = Annotated[
    Path | None,
    typer.Option(
        "--job", metavar="JOB.py", exists=True, dir_okay=False, help="The job's file: knows sinks of every kind."
    ),
]
Servers = Annotated[str | None, typer.Option("--servers", metavar="HOST:PORT", help="Kafka, without the job's file.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--command-config", metavar="FILE", exists=True, dir_okay=False, help="Kafka client settings: TLS, SASL."
    ),
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="JOB", help="Kafka ids, where the ledger is lost.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="The job's last run, on another machine, is dead.")]
Force = Annotated[
    bool, typer.Option("--force", help="Without a ledger that knows of them. May lose or double rows; see the docs.")
]


@app.command("list")
def list_open(
    places: Places = None,
    script: Script = None,
    servers: Servers = None,
    config: Config = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> None:
    """Show every open transaction of a job, and what the ledger says of it."""
    output = Output.choose(as_json)
    with open_target(places, script, servers, config, prefix) as target, output.working("Asking …"):
        report, run = target.look(), target.run()
        chosen = target.named(report.orphans)
    if as_json:
        output.record(
            "Transactions",
            {
                "job": target.ledgers.job if target.ledgers is not None else prefix,
                "running": run.running,
                "run": run.said,
                "transactions": [_facts(one) for one in chosen],
                "not_asked": [
                    *({"query": query, "sink": sink, "why": why} for query, sink, why in report.unseen),
                    *({"query": query, "sink": sink, "why": "it cannot say"} for query, sink in report.silent),
                ],
            },
        )
        return
    output.table("Transactions", [_row(one) for one in chosen]) if chosen else output.line("Nothing is open.")
    _report_unseen(output, report)
    if target.ledgers is not None:
        said = {True: "runs", False: "does not run", None: "may run"}[run.running]
        output.line(f"Job {target.ledgers.job} {said}: {run.said}.")


@app.command("describe")
def describe(
    places: Places = None,
    script: Script = None,
    servers: Servers = None,
    config: Config = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> None:
    """Show all that is known of the transactions that are named."""
    output = Output.choose(as_json)
    with open_target(places, script, servers, config, prefix) as target, output.working("Asking …"):
        if not target.ids:
            raise typer.BadParameter("name a transaction; `penstock transactions list` shows them.")
        chosen = target.named(target.look().orphans)
    if as_json:
        output.table("Transactions", [_facts(one) for one in chosen])
        return
    for one in chosen:
        facts = _facts(one)
        for key in ("started", "decided_at"):
            facts[key] = facts[key] and _local_time(facts[key])
        output.record(one.id, {**{k: v for k, v in facts.items() if k not in ("id", "details")}, **one.details})


@app.command("commit")
def commit(
    places: Places = None,
    script: Script = None,
    servers: Servers = None,
    config: Config = None,
    prefix: Prefix = None,
    take_over: TakeOver = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Commit what is decided, as the job's next start would; each outcome is proven. Whole epochs: with ids, those
    they belong to."""
    from penstock.transactions import settlement
    from penstock.transactions.orphans import Verdict

    output = Output.choose(as_json)
    rows: list[dict[str, Any]] = []
    failed: PenstockError | None = None
    with open_target(places, script, servers, config, prefix) as target, output.working("Committing …"):
        if target.ledgers is None:
            _end_by_force(output, target, commit=True, force=force)
            return
        settlement.refuse_running(target.run(), target.ledgers.job, take_over=take_over)
        chosen = target.named(target.look().orphans)
        for one in chosen if target.ids else ():
            if one.verdict is not Verdict.DECIDED:
                raise settlement.wrong_way(one.id, one.verdict)
        wanted = {one.query for one in chosen if one.verdict is Verdict.DECIDED}
        queries = [query for query in target.ledgers.queries if query.uid in wanted]
        for query in queries:
            settlement.refuse_logged(query)
        for query in queries:
            try:
                settled = settlement.commit(target.ledgers, query, target.sinks)
            except PenstockError as error:
                failed = failed or error
                continue
            rows += [
                {
                    "query": settled.query,
                    "epoch": settled.epoch,
                    "sink": sink,
                    "partition": writer,
                    "outcome": outcome.value,
                    "complete": settled.complete,
                }
                for (sink, writer), outcome in sorted(settled.outcomes.items())
            ]
    if rows or as_json:
        output.table("Committed", rows)
    elif failed is None:
        output.line("Nothing is decided and open.")
    if failed is not None:
        raise failed


@app.command("abort")
def abort(
    places: Places = None,
    script: Script = None,
    servers: Servers = None,
    config: Config = None,
    prefix: Prefix = None,
    take_over: TakeOver = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Abort what is not decided, and fence its writers; what is decided stays as it is."""
    from penstock.transactions import settlement
    from penstock.transactions.orphans import Verdict

    output = Output.choose(as_json)
    with open_target(places, script, servers, config, prefix) as target, output.working("Aborting …"):
        if target.ledgers is None:
            _end_by_force(output, target, commit=False, force=force)
            return
        settlement.refuse_running(target.run(), target.ledgers.job, take_over=take_over)
        report = target.look()
        chosen = target.named(report.orphans)
        unknown = [one for one in chosen if one.verdict is Verdict.UNKNOWN] if force and target.ids else []
        for one in chosen if target.ids else ():
            if one.verdict is not Verdict.UNDECIDED and one not in unknown:
                raise settlement.wrong_way(one.id, one.verdict, one.epoch)
        settlement.abort_unknown(target.ledgers, target.sinks, unknown)
        chosen = [one for one in chosen if one.verdict is Verdict.UNDECIDED]
        silent = [] if target.ids else list(report.silent)
        named = {one.query for one in chosen} | {query for query, _ in silent}
        queries = [query for query in target.ledgers.queries if query.uid in named]
        for query in queries:
            settlement.refuse_logged(query)
        for query in queries:
            own = [one for one in chosen if one.query == query.uid]
            undecided = [one for one in report.of(query.uid) if one.verdict is Verdict.UNDECIDED]
            others = [one for one in undecided if one not in own]
            settlement.abort(target.ledgers, query, target.sinks, own, others)
        left = {one.id for one in target.look().orphans if one.state == "open"} if queries or unknown else set()
    rows = [
        {"query": one.query, "sink": one.sink, "id": one.id, "outcome": "open" if one.id in left else "aborted"}
        for one in (*chosen, *unknown)
    ]
    rows += [{"query": query, "sink": sink, "id": "", "outcome": "swept"} for query, sink in silent]
    output.table("Aborted", rows) if rows or as_json else output.line("Nothing is open that is not decided.")
    kept = [one for one in report.orphans if one.verdict is Verdict.DECIDED]
    if kept:
        output.line(f"{len(kept)} that are decided were kept: commit them, or start the job.")
    if not target.ids and any(one.verdict is Verdict.UNKNOWN for one in report.orphans):
        output.line("Some are of a run that the ledger does not know; list them, and see the docs of --force.")
    _report_unseen(output, report)
    if report.unseen and not target.ids:
        raise typer.Exit(1)


@app.command("resolve")
def resolve(
    places: Places = None,
    script: Script = None,
    servers: Servers = None,
    config: Config = None,
    take_over: TakeOver = False,
    verdict: Annotated[
        str | None, typer.Option("--as", metavar="committed|lost", help="Your word, kept in the ledger.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask again.")] = False,
    as_json: Json = False,
) -> None:
    """Say what became of decided transactions that the other system has forgotten, after a look at what it holds. Only
    where nothing can be proven; a wrong word loses or doubles their rows."""
    from penstock.checkpoint.decision import Outcome
    from penstock.transactions import settlement

    outcomes = {"committed": Outcome.ALREADY_COMMITTED, "lost": Outcome.LOST}
    if verdict is not None and verdict not in outcomes:
        raise typer.BadParameter("--as takes committed or lost.")
    output = Output.choose(as_json)
    rows: list[dict[str, Any]] = []

    def word(found: Sequence[settlement.Unprovable]) -> Outcome | None:
        own = [_unproven_row(one, verdict) for one in found]
        rows.extend(own)
        if verdict is None:
            return None
        if not yes:
            if not as_json:
                output.table("Not proven", own)
            typer.confirm(f"Nobody can prove it. Record these {len(own)} as {verdict}?", abort=True, err=True)
        return outcomes[verdict]

    with open_target(places, script, servers, config, None) as target:
        assert target.ledgers is not None
        settlement.refuse_running(target.run(), target.ledgers.job, take_over=take_over)
        chosen = [one for one in target.named(target.look().orphans) if one.verdict == "decided"]
        queries = [query for query in target.ledgers.queries if query.uid in {one.query for one in chosen}]
        for query in queries:
            settlement.refuse_logged(query)
        for query in queries:
            named = (
                {(one.sink, one.partition or 0) for one in chosen if one.query == query.uid} if target.ids else set()
            )
            settlement.resolve(target.ledgers, query, target.sinks, named, word)
    if as_json or (rows and (yes or verdict is None)):
        output.table("Not proven", rows)
    if not rows:
        output.line("All that is decided is proven: start the job, or use penstock transactions commit.")
    elif verdict is None:
        output.line("Compare the target with these rows, then say --as committed or --as lost.")
        raise typer.Exit(1)
    else:
        output.line(f"Recorded as {verdict}. The next start of the job goes by it.")


def register(root: typer.Typer) -> None:
    """Put the commands where the user finds them."""
    root.add_typer(app, name="transactions")


def _end_by_force(output: Output, target: TransactionsTarget, *, commit: bool, force: bool) -> None:
    """End transactions of which no ledger is known: only those that are named, and only by force."""
    from penstock.transactions.orphans import Verdict
    from penstock.transactions.settlement import wrong_way

    assert target.cluster is not None
    chosen = target.named(target.look().orphans) if target.ids else []
    if not force or not chosen:
        raise wrong_way(target.ids[0] if target.ids else f"what begins with {target.prefix!r}", Verdict.UNKNOWN)
    target.cluster.end(chosen, commit=commit)
    done = "committed by force" if commit else "aborted by force"
    output.table("Ended", [{"id": one.id, "outcome": done} for one in chosen])


def _unproven_row(one: Unprovable, verdict: str | None) -> dict[str, Any]:
    from penstock.transactions.orphans import name_of

    return {
        "query": one.query,
        "epoch": one.epoch,
        "sink": one.committable.sink,
        "partition": one.committable.writer,
        "id": name_of(one.committable),
        "rows": one.committable.rows,
        "seen": one.seen or "this sink cannot look",
        "recorded": verdict or "",
    }


def _report_unseen(output: Output, report: Report) -> None:
    for query, sink, why in report.unseen:
        output.line(f"Sink {sink} of query {query} was not asked: {why}")
    for query, sink in report.silent:
        output.line(f"Sink {sink} of query {query} cannot say what it has open.")


def _facts(one: Orphan) -> dict[str, Any]:
    return {
        "id": one.id,
        "query": one.query,
        "sink": one.sink,
        "state": one.state,
        "started": one.started,
        "generation": one.generation,
        "epoch": one.epoch,
        "partition": one.partition,
        "rows": one.rows,
        "ledger": one.verdict.value,
        "decided_by": one.decided_by,
        "decided_at": one.decided_at,
        "can_only_be": _allowed_end(one),
        "details": dict(one.details),
    }


def _allowed_end(one: Orphan) -> str:
    if one.verdict == "decided":
        return "delivered by the job" if one.in_log else "committed"
    return "aborted" if one.verdict == "undecided" else ""


def _row(one: Orphan) -> dict[str, Any]:
    decided = f" (epoch {one.epoch}" + (f" by generation {one.decided_by})" if one.decided_by else ")")
    return {
        "query": one.query,
        "sink": one.sink,
        "id": one.id,
        "state": one.state,
        "age": duration_text(int((time.time() - one.started) * 1000)) if one.started else "",
        "generation": one.generation,
        "epoch": one.epoch,
        "partition": one.partition,
        "ledger": one.verdict.value + (decided if one.verdict == "decided" else ""),
        "can only be": _allowed_end(one),
    }


def _local_time(seconds: float) -> str:
    """In the zone of this machine."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
