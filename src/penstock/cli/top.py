"""`penstock top`: the jobs of this machine and how each of them does, live in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.job_target import client_at, find_entry, find_running
from penstock.cli.jobs import Json, Manager, entries_elsewhere, job_row
from penstock.cli.output import Output
from penstock.cli.text import plain_text
from penstock.ops.process.registry import Entry, Registry, now_ms

if TYPE_CHECKING:
    from penstock.cli.top_facts import JobFacts
    from penstock.ops.server.client import Client


def top(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Begin with this one; also one that has ended.")
    ] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print what there is to see, once, and leave.")] = False,
    manager: Manager = None,
    as_json: Json = False,
) -> None:
    """Watch the jobs of this machine: their queries, epochs, phases, rates, lag and restarts.

    Keys: arrows or a number choose a job, s takes a savepoint after asking, q leaves. Where standard output is not a
    terminal, and with --json, what there is to see is printed once.
    """
    watched = Watched(manager)
    chosen = watched.find(job) if job is not None else None
    if once or as_json or not sys.stdout.isatty():
        _print(Output.choose(as_json), watched, chosen, as_json=as_json)
        return
    from penstock.cli.top_screen import watch

    watch(watched, chosen, interval)


class Watched:
    """The runs that are looked at: those of this machine, or what runs at `manager`. One that was seen alive stays,
    so that its end is seen too."""

    def __init__(self, manager: str | None = None, registry: Registry | None = None) -> None:
        self._manager, self._registry = manager, registry or Registry()
        self._seen: dict[str, Entry] = {}

    def find(self, job: str) -> str:
        """The id of the run that is meant; it is looked at from now on. Raises `JobNotFound`."""
        if self._manager is not None:
            return find_running(job, self._manager).id
        entry = find_entry(job)
        self._seen[entry.id] = entry
        return entry.id

    def entries(self) -> list[Entry]:
        """The newest first."""
        found = self._registry.entries() if self._manager is None else entries_elsewhere(self._manager)
        self._seen = {entry.id: entry for entry in found if not entry.state.ended or entry.id in self._seen}
        return list(self._seen.values())

    def client(self, entry: Entry) -> Client:
        """For a run that has an address."""
        from penstock.ops.server.client import Client

        if self._manager is not None:
            return client_at(self._manager)
        return Client(str(entry.address), entry.token, entry.certificate)


def look(watched: Watched, chosen: str | None, reader_of: Callable[[str], Any]) -> list[JobFacts]:
    """Every run, and of the chosen one (None: of all) what its server tells."""
    from penstock.cli.top_facts import JobFacts

    return [
        reader_of(entry.id).read(entry) if chosen in (None, entry.id) else JobFacts(entry, restarts=entry.restarts)
        for entry in watched.entries()
    ]


def _print(output: Output, watched: Watched, chosen: str | None, *, as_json: bool) -> None:
    from penstock.cli.top_facts import JobReader, sentences

    jobs = [job for job in look(watched, chosen, lambda _: JobReader(watched.client)) if chosen in (None, job.entry.id)]
    if as_json:
        output.record("Jobs", {"time": now_ms(), "jobs": [job.to_dict() for job in jobs]})
        return
    if not jobs:
        output.line("No job runs.")
        return
    output.table("Jobs", [{**job_row(job.entry), "restarts": job.restarts} for job in jobs])
    for job in jobs:
        if job.queries:
            output.table(f"Queries of {plain_text(job.entry.name)}", [query.row() for query in job.queries])
        for heading, sentence in sentences(job.entry):
            output.line(f"{heading}: {sentence}")
        if job.note is not None:
            output.line(job.note)
