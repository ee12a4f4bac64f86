"""What `penstock transactions` works on: a job's ledgers and sinks, or a Kafka cluster alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.errors import TransactionRefused

if TYPE_CHECKING:
    from penstock.engine.settlement import JobLedgers, Sinks
    from penstock.ops.kafka_transactions import Cluster
    from penstock.ops.transactions import Orphan, Report, RunCheck


@dataclass
class TransactionsTarget:
    """What a command works on: ledgers and sinks, or a cluster and a prefix alone."""

    ids: Sequence[str]
    ledgers: JobLedgers | None = None
    sinks: Sinks = field(default_factory=dict)
    cluster: Cluster | None = None
    prefix: str = ""

    def look(self) -> Report:
        from penstock.ops.transactions import Report, look

        if self.ledgers is not None:
            return look(self.ledgers, self.sinks)
        assert self.cluster is not None
        return Report(tuple(self.cluster.open(self.prefix)))

    def run(self) -> RunCheck:
        from penstock.ops.transactions import RunCheck, run_of

        return run_of(self.ledgers) if self.ledgers is not None else RunCheck(None, "there is no ledger to ask")

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


@contextmanager
def open_target(
    places: Sequence[str] | None,
    script: Path | None,
    servers: str | None,
    config: Path | None,
    prefix: str | None,
) -> Iterator[TransactionsTarget]:
    """Open what the arguments name; connections are closed at the end of the block."""
    from penstock.engine.settlement import JobLedgers
    from penstock.ops.kafka_transactions import Cluster, client_options

    arguments = list(places or ())
    if script is not None:
        if servers or prefix or config:
            raise typer.BadParameter("--job knows its sinks; --servers, --prefix and --command-config are for Kafka.")
        from penstock.cli.program import load_job

        job = load_job(script)
        location = f"{job.checkpoints.storage.rstrip('/')}/{job.name}"
        yield TransactionsTarget(arguments, JobLedgers.at(location, job.spark), job._sinks)
        return
    named, options = client_options(config) if config is not None else (None, {})
    servers = servers or named
    if prefix is not None:
        if servers is None:
            raise typer.BadParameter("--prefix needs --servers.")
    elif not arguments:
        raise typer.BadParameter("name a job's folder, STORAGE/JOB; or give --job, or --servers with --prefix.")
    cluster = Cluster(servers, options) if servers is not None else None
    try:
        if prefix is not None:
            yield TransactionsTarget(arguments, cluster=cluster, prefix=prefix)
        else:
            ledgers = JobLedgers.at(arguments[0])
            yield TransactionsTarget(arguments[1:], ledgers, cluster.sinks(ledgers) if cluster is not None else {})
    finally:
        if cluster is not None:
            cluster.close()
