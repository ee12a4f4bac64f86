"""The audit of one job: which decisions were carried out, which reader looks at which sink, and the report."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.audit.compare import ANOMALIES, Decided, Finding, Visible, compare
from penstock.audit.kafka import KafkaReader
from penstock.audit.stores import Columns, read_files, read_mysql, read_postgres, read_table
from penstock.checkpoint.decision import Committable
from penstock.checkpoint.ledger import Manifest
from penstock.checkpoint.open import history_of
from penstock.engine.settlement import JobLedgers, QueryLedger

Reader = Callable[[Sequence[Decided]], Visible]
_READERS: Mapping[str, Callable[[Any, Sequence[Decided], Columns], Visible]] = {
    "FileSink": read_files, "DeltaSink": read_table, "IcebergSink": read_table,
    "PostgresSink": read_postgres, "MySqlSink": read_mysql,
}  # fmt: skip
_UNPROVABLE = {
    "RedisSink": "a key holds its last value, whichever epoch wrote it",
    "WriteAheadSink": "only your own functions can read the target",
}


@dataclass
class Report:
    """`sinks` has one entry for each; times are seconds since 1970."""

    job: str
    at: float = field(default_factory=time.time)
    sinks: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def anomalies(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind in ANOMALIES]

    @property
    def status(self) -> int:
        """0: every row is accounted for; 1: not so; 3: what can be proven is, and something cannot."""
        return 1 if self.anomalies else 3 if self.findings else 0

    def to_json(self) -> str:
        facts = {"unaccounted_rows": self.unaccounted(), "status": self.status, **asdict(self)}
        return json.dumps(facts, indent=2) + "\n"

    def unaccounted(self, sink: str | None = None) -> int:
        return sum(finding.rows for finding in self.anomalies if sink in (None, finding.sink))

    def to_metrics(self) -> str:
        """For a collector of text files: Prometheus' own format."""
        lines = ["# TYPE penstock_audit_unaccounted_rows gauge"]
        for entry in self.sinks:
            labels = ",".join(f"{key}={json.dumps(entry[key])}" for key in ("query", "sink"))
            rows = self.unaccounted(entry["sink"])
            lines.append(f"penstock_audit_unaccounted_rows{{job={json.dumps(self.job)},{labels}}} {rows}")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        verdict = {0: "Every row is accounted for.", 1: f"{self.unaccounted()} rows are not accounted for."}
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))
        text = verdict.get(self.status, "What can be proven is accounted for; see below for the rest.")
        style = "body{font:15px system-ui;margin:2em auto;max-width:70em}td,th{text-align:left;padding:.3em 1em .3em 0}"
        return (
            f"<!doctype html><meta charset=utf-8><title>Audit of {html.escape(self.job)}</title><style>{style}</style>"
            f"<h1>Audit of {html.escape(self.job)}</h1><p>{when}</p><p><strong>{text}</strong></p>"
            f"{_table(self.sinks)}<h2>Findings</h2>{_table([asdict(finding) for finding in self.findings])}\n"
        )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    cells = [[*rows[0]], *([("" if value is None else value) for value in row.values()] for row in rows)]
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in line) for line in cells]
    return f"<table><tr>{'<tr>'.join(lines)}</table>"


class Audit:
    """Of one job; `run` may be called again, and Kafka's topics are then read from where the last run ended. `columns`
    are what the program writes into each sink, where that is known."""

    def __init__(
        self, ledgers: JobLedgers, sinks: Mapping[str, Any], columns: Mapping[str, Columns], *, shared: bool = False
    ) -> None:
        self._ledgers, self._sinks, self._columns, self._shared = ledgers, sinks, columns, shared
        self._readers: dict[str, Reader] = {}

    def run(self) -> Report:
        report = Report(self._ledgers.job)
        for query in self._ledgers.queries:
            decided, pending = decided_of(query)
            for uid in sorted({*query.sinks, *(writer.sink for writer in decided)}):
                mine = [writer for writer in decided if writer.sink == uid]
                epochs = sorted({writer.epoch for writer in mine})
                rows = sum(writer.rows for writer in mine)
                facts = {"query": query.uid, "sink": uid, "kind": type(self._sinks.get(uid)).__name__}
                span = {"first_epoch": epochs[0], "last_epoch": epochs[-1]} if epochs else {}
                report.sinks.append(
                    {**facts, "first_epoch": None, "last_epoch": None, **span, "writers": len(mine), "rows": rows,
                     "not_yet": pending}
                )  # fmt: skip
                if mine:
                    report.findings += compare(mine, self._reader(uid)(mine), shared=self._shared)
        return report

    def _reader(self, uid: str) -> Reader:
        if uid not in self._readers:
            sink = self._sinks.get(uid)
            kind, columns = type(sink).__name__, self._columns.get(uid, ())
            why = _UNPROVABLE.get(kind, "no reader for this kind of sink")
            if sink is None:
                why = "the program no longer has this sink"
            elif getattr(sink, "mode", "") == "upsert":
                kind, why = "", "an upsert replaces rows of earlier epochs"
            if kind == "KafkaSink":
                self._readers[uid] = KafkaReader(sink).read
            elif read := _READERS.get(kind):
                self._readers[uid] = lambda decided: read(sink, decided, columns)
            else:
                self._readers[uid] = lambda _: Visible(unprovable=why)
        return self._readers[uid]


def decided_of(query: QueryLedger) -> tuple[list[Decided], int]:
    """The writers of every complete epoch, oldest first; and how many decided epochs are not complete.

    Of several decisions for one epoch of one history, the newest was carried out. Rows of a history that a restore has
    ended stay visible; whether its last epoch was completed is not known, so that one is left out."""
    newest: dict[tuple[str, str, int], Manifest] = {}
    for manifest in query.ledger.all_manifests():
        key = manifest.history or "", manifest.query or "", manifest.decision.id.epoch
        if key not in newest or newest[key].decision.id < manifest.decision.id:
            newest[key] = manifest
    current, (complete, _) = history_of(query.log), query.log.next_epoch()
    last = {key[:2]: key[2] for key in sorted(newest)}
    decided, pending = list[Decided](), 0
    for (history, name, epoch), manifest in sorted(newest.items(), key=lambda entry: entry[0][2]):
        end = complete if history == current else last[history, name]
        pending += epoch >= end
        for item in manifest.decision.to_commit if epoch < end else ():
            at_sink = _delivered(query, item, epoch) if item.logged else item
            if at_sink is not None:
                of_writer = (at_sink.writer, at_sink.rows, at_sink.checksum, at_sink.payload)
                decided.append(Decided(query.uid, item.sink, epoch, manifest.decision.id.generation, *of_writer))
    return decided, pending


def _delivered(query: QueryLedger, item: Committable, epoch: int) -> Committable | None:
    """What the drainer committed of a writer in the in-flight log; None while it waits there."""
    if any(entry.epoch == epoch for entry in query.waiting(item.sink)):
        return None
    ledger = query.drain_ledger(item.sink)
    newest = max(ledger.manifests(epoch) if ledger else (), key=lambda each: each.decision.id, default=None)
    rewritten = [each for each in (newest.decision.to_commit if newest else ()) if each.writer == item.writer]
    return rewritten[0] if rewritten else item.at_sink or item
