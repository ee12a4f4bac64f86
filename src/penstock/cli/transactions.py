"""`penstock transactions`: lists and ends the transactions that dead jobs left open, as the ledger decides."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, Output, duration_text
from penstock.errors import PenstockError, TransactionRefused

if TYPE_CHECKING:
    from penstock.engine.settlement import JobLedgers, QueryLedger, Sinks, Unprovable
    from penstock.ops.transactions import Orphan, Report

app = typer.Typer(help="What dead jobs left open in other systems, and its end.", no_args_is_help=True)

Places = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STORAGE/JOB] [ID]...", help="The job's folder (not with --job), and ids."),
]
Script = Annotated[
    Path | None,
    typer.Option("--job", metavar="JOB.py", exists=True, dir_okay=False, help="The job's file, which knows its sinks."),
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="The job's last run, on another machine, is dead.")]
Force = Annotated[
    bool, typer.Option("--force", help="Without a ledger that knows of them. May lose or double rows; see the docs.")
]
ResolveAs = Annotated[
    str | None, typer.Option("--as", metavar="committed|lost", help="The outcome, kept in the ledger.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask again.")]


@dataclass(frozen=True)
class Target:
    """What a command works on, and the ids that it names."""

    ids: Sequence[str]
    ledgers: JobLedgers
    sinks: Sinks
    as_json: bool

    def look(self) -> Report:
        from penstock.ops.transactions import look

        return look(self.ledgers, self.sinks)

    def look_once_dead(self, take_over: bool) -> Report:
        """Refuses a job that runs, or that may run."""
        from penstock.ops.transactions import refuse_running, run_of

        refuse_running(run_of(self.ledgers), self.ledgers.job, take_over=take_over)
        return self.look()

    def named(self, orphans: Collection[Orphan]) -> list[Orphan]:
        """Those that the command names; all where it names none."""
        known = {orphan.id: orphan for orphan in orphans}
        for name in self.ids:
            if name not in known:
                raise TransactionRefused(
                    f"{name} is neither open nor decided.",
                    safe="nothing was touched.",
                    to_do="see `penstock transactions list`; it may have ended meanwhile.",
                )
        return [known[name] for name in dict.fromkeys(self.ids)] if self.ids else list(orphans)

    def queries(self, uids: Collection[str]) -> list[QueryLedger]:
        """Those of these uids. Refuses what only the job can deliver."""
        from penstock.engine.settlement import refuse_logged

        queries = [query for query in self.ledgers.queries if query.uid in uids]
        for query in queries:
            refuse_logged(query)
        return queries


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:

    def add(body: Callable[..., None]) -> Callable[..., None]:
        def command(places: Places = None, script: Script = None, as_json: Json = False, **options: Any) -> None:
            body(open_target(places, script, as_json), Output.choose(as_json), **options)

        *shared, _ = inspect.signature(command, eval_str=True).parameters.values()
        _, _, *own = inspect.signature(body, eval_str=True).parameters.values()
        command.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        command.__doc__ = body.__doc__
        return app.command(name)(command)

    return add


def open_target(places: Sequence[str] | None, script: Path | None, as_json: bool) -> Target:
    from penstock.engine.settlement import JobLedgers

    arguments = list(places or ())
    if script is not None:
        from penstock.cli.program import load_job

        job = load_job(script)
        location = f"{job.checkpoints.storage.rstrip('/')}/{job.name}"
        return Target(arguments, JobLedgers.at(location, job.spark), job._sinks, as_json)
    if not arguments:
        raise typer.BadParameter("name a job's folder, STORAGE/JOB; or give --job.")
    return Target(arguments[1:], JobLedgers.at(arguments[0]), {}, as_json)


@_command("list")
def list_open(target: Target, output: Output) -> None:
    """Show every open transaction of a job, and what the ledger says of it."""
    from penstock.ops.transactions import run_of

    with output.working("Asking …"):
        report, run = target.look(), run_of(target.ledgers)
        chosen = target.named(report.orphans)
    if target.as_json:
        job = {"job": target.ledgers.job, "running": run.running, "run": run.evidence}
        output.record("Transactions", {**job, "transactions": [*map(_facts, chosen)], "not_asked": report.not_asked()})
        return
    output.table("Transactions", [_row(orphan) for orphan in chosen]) if chosen else output.line("Nothing is open.")
    _report_unseen(output, report)
    state_text = {True: "runs", False: "does not run", None: "may run"}[run.running]
    output.line(f"Job {target.ledgers.job} {state_text}: {run.evidence}.")


@_command("describe")
def describe(target: Target, output: Output) -> None:
    """Show all that is known of the transactions that are named."""
    if not target.ids:
        raise typer.BadParameter("name a transaction; `penstock transactions list` shows them.")
    with output.working("Asking …"):
        chosen = target.named(target.look().orphans)
    if target.as_json:
        output.table("Transactions", [_facts(orphan) for orphan in chosen])
        return
    for orphan in chosen:
        facts = _facts(orphan)
        for key in ("started", "decided_at"):
            if facts[key]:  # in the zone of this machine
                facts[key] = datetime.fromtimestamp(facts[key]).astimezone().isoformat(sep=" ", timespec="seconds")
        output.record(orphan.id, {**{k: v for k, v in facts.items() if k not in ("id", "details")}, **orphan.details})


@_command("commit")
def commit(target: Target, output: Output, take_over: TakeOver = False) -> None:
    """Commit what is decided, as the job's next start would; each outcome is proven. Whole epochs: with ids, those
    they belong to."""
    from penstock.engine import settlement
    from penstock.ops.transactions import DecisionState, refusal_of

    rows: list[dict[str, Any]] = []
    failed: PenstockError | None = None
    with output.working("Committing …"):
        chosen = target.named(target.look_once_dead(take_over).orphans)
        for orphan in chosen if target.ids else ():
            if orphan.decision is not DecisionState.DECIDED:
                raise refusal_of(orphan.id, orphan.decision)
        for query in target.queries({each.query for each in chosen if each.decision is DecisionState.DECIDED}):
            try:
                result = settlement.commit(target.ledgers, query, target.sinks)
            except PenstockError as error:
                failed = failed or error
                continue
            epoch, complete = {"query": result.query, "epoch": result.epoch}, {"complete": result.complete}
            rows += [
                {**epoch, "sink": sink, "partition": writer, "outcome": outcome.value, **complete}
                for (sink, writer), outcome in sorted(result.outcomes.items())
            ]
    if rows or target.as_json:
        output.table("Committed", rows)
    elif failed is None:
        output.line("Nothing is decided and open.")
    if failed is not None:
        raise failed


@_command("abort")
def abort(target: Target, output: Output, take_over: TakeOver = False, force: Force = False) -> None:
    """Abort what is not decided, and fence its writers; what is decided stays as it is."""
    from penstock.ops import transactions
    from penstock.ops.transactions import DecisionState

    with output.working("Aborting …"):
        report = target.look_once_dead(take_over)
        chosen = target.named(report.orphans)
        unknown = [orphan for orphan in chosen if force and target.ids and orphan.decision is DecisionState.UNKNOWN]
        for orphan in chosen if target.ids else ():
            if orphan.decision is not DecisionState.UNDECIDED and orphan not in unknown:
                raise transactions.refusal_of(orphan.id, orphan.decision, orphan.epoch)
        transactions.abort_unknown(target.ledgers, target.sinks, unknown)
        chosen = [orphan for orphan in chosen if orphan.decision is DecisionState.UNDECIDED]
        silent = [] if target.ids else list(report.silent)
        queries = target.queries({orphan.query for orphan in chosen} | {query for query, _ in silent})
        for query in queries:
            of_query = [orphan for orphan in report.orphans if orphan.query == query.uid]
            undecided = [orphan for orphan in of_query if orphan.decision is DecisionState.UNDECIDED]
            selected = [orphan for orphan in undecided if orphan in chosen]
            others = [orphan for orphan in undecided if orphan not in chosen]
            transactions.abort(target.ledgers, query, target.sinks, selected, others)
        after = target.look().orphans if queries or unknown else ()
        still_open = {orphan.id for orphan in after if orphan.state == "open"}
    ends = {True: "open", False: "aborted"}
    rows = [
        {"query": each.query, "sink": each.sink, "id": each.id, "outcome": ends[each.id in still_open]}
        for each in (*chosen, *unknown)
    ]
    rows += [{"query": query, "sink": sink, "id": "", "outcome": "swept"} for query, sink in silent]
    output.table("Aborted", rows) if rows or target.as_json else output.line("Nothing is open that is not decided.")
    decided = [orphan for orphan in report.orphans if orphan.decision is DecisionState.DECIDED]
    if decided:
        output.line(f"{len(decided)} that are decided were kept: commit them, or start the job.")
    if not target.ids and any(orphan.decision is DecisionState.UNKNOWN for orphan in report.orphans):
        output.line("Some are of a run that the ledger does not know; list them, and see the docs of --force.")
    _report_unseen(output, report)
    if report.unseen and not target.ids:
        raise typer.Exit(1)


@_command("resolve")
def resolve(
    target: Target, output: Output, take_over: TakeOver = False, verdict: ResolveAs = None, yes: Yes = False
) -> None:
    """Record the outcome of decided transactions that the other system has forgotten, after checking what it holds.
    Only where nothing can be proven; a wrong record loses or duplicates their rows."""
    from penstock.checkpoint.decision import Outcome
    from penstock.engine import settlement
    from penstock.ops.transactions import name_of

    outcomes = {"committed": Outcome.ALREADY_COMMITTED, "lost": Outcome.LOST}
    if verdict is not None and verdict not in outcomes:
        raise typer.BadParameter("--as takes committed or lost.")
    rows: list[dict[str, Any]] = []

    def decide(unproven: Sequence[Unprovable]) -> Outcome | None:
        unproven_rows = [
            {
                "query": each.query, "epoch": each.epoch, "sink": each.committable.sink,
                "partition": each.committable.writer, "id": name_of(each.committable), "rows": each.committable.rows,
                "seen": each.seen or "this sink cannot look", "recorded": verdict or "",
            }
            for each in unproven
        ]  # fmt: skip
        rows.extend(unproven_rows)
        if verdict is None:
            return None
        if not yes:
            if not target.as_json:
                output.table("Not proven", unproven_rows)
            question = f"Their outcome cannot be proven. Record these {len(unproven_rows)} as {verdict}?"
            typer.confirm(question, abort=True, err=True)
        return outcomes[verdict]

    orphans = target.named(target.look_once_dead(take_over).orphans)
    decided = [orphan for orphan in orphans if orphan.decision == "decided"]
    for query in target.ledgers.queries:
        selected = [orphan for orphan in decided if orphan.query == query.uid]
        named = {(orphan.sink, orphan.partition or 0) for orphan in selected if target.ids}
        if selected:
            settlement.resolve(target.ledgers, query, target.sinks, named, decide)
    if target.as_json or (rows and (yes or verdict is None)):
        output.table("Not proven", rows)
    if not rows:
        output.line("All that is decided is proven: start the job, or use penstock transactions commit.")
    elif verdict is None:
        output.line("Compare the target with these rows, then give --as committed or --as lost.")
        raise typer.Exit(1)
    else:
        output.line(f"Recorded as {verdict}. The next start of the job follows it.")


def _report_unseen(output: Output, report: Report) -> None:
    for query, sink, why in report.unseen:
        output.line(f"Sink {sink} of query {query} could not be read: {why}")
    for query, sink in report.silent:
        output.line(f"Sink {sink} of query {query} cannot list what it has open.")


def _facts(orphan: Orphan) -> dict[str, Any]:
    ends = {"decided": "delivered by the job" if orphan.in_log else "committed", "undecided": "aborted"}
    return {
        "id": orphan.id, "query": orphan.query, "sink": orphan.sink, "state": orphan.state, "started": orphan.started,
        "generation": orphan.generation, "epoch": orphan.epoch, "partition": orphan.partition, "rows": orphan.rows,
        "ledger": orphan.decision.value, "decided_by": orphan.decided_by, "decided_at": orphan.decided_at,
        "can_only_be": ends.get(orphan.decision, ""), "details": dict(orphan.details),
    }  # fmt: skip


def _row(orphan: Orphan) -> dict[str, Any]:
    facts = _facts(orphan)
    if orphan.decision == "decided":
        author = f" by generation {orphan.decided_by}" if orphan.decided_by else ""
        facts["ledger"] += f" (epoch {orphan.epoch}{author})"
    facts["age"] = duration_text(int((time.time() - orphan.started) * 1000)) if orphan.started else ""
    columns = ("query", "sink", "id", "state", "age", "generation", "epoch", "partition", "ledger", "can_only_be")
    return {column: facts[column] for column in columns}
