"""The audit of one job: which decisions were carried out, which reader looks at which sink, and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from penstock.audit.compare import ANOMALIES, CHANGED, NO_LONGER, Decided, Finding, Later, Visible, compare
from penstock.audit.kafka import KafkaReader
from penstock.audit.stores import Columns, read_files, read_mysql, read_postgres, read_table
from penstock.checkpoint.decision import Committable
from penstock.checkpoint.ledger import Manifest
from penstock.checkpoint.open import history_of
from penstock.engine.settlement import JobLedgers, QueryLedger
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST

_READERS: Mapping[str, Callable[[Any, Sequence[Decided], Columns, Later], Visible]] = {
    "FileSink": read_files, "DeltaSink": read_table, "IcebergSink": read_table,
    "PostgresSink": read_postgres, "MySqlSink": read_mysql,
}  # fmt: skip
_SIGN = {LOST: -1, NO_LONGER: -1, DUPLICATE: 1, ABORTED: 1}
_UNPROVABLE = {"RedisSink": "a key holds its last value, whichever epoch wrote it"}


@dataclass
class Report:
    """`sinks` has one entry for each, `epochs` one for each of its complete epochs; times are seconds since 1970."""

    job: str
    at: float = field(default_factory=time.time)
    sinks: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def status(self) -> int:
        """0: every row is accounted for; 1: not so; 3: what can be proven is, and something cannot."""
        kinds = {finding.kind for finding in self.findings}
        return 1 if kinds & set(ANOMALIES) else 3 if kinds else 0

    def unaccounted(self, sink: str | None = None) -> int:
        return sum(each.rows for each in self.findings if each.kind in ANOMALIES and sink in (None, each.sink))

    @property
    def verdict(self) -> str:
        known = {0: "Every row is accounted for.", 1: f"{self.unaccounted()} rows are not accounted for."}
        return known.get(self.status, "What can be proven is accounted for; something cannot be proven.")

    def to_json(self) -> str:
        totals = {"unaccounted_rows": self.unaccounted(), "status": self.status, "verdict": self.verdict}
        return json.dumps({**totals, **asdict(self)}, indent=2)

    def to_metrics(self) -> str:
        """For a collector of text files: Prometheus' own format."""
        lines = ["# TYPE penstock_audit_unaccounted_rows gauge"]
        for entry in self.sinks:
            labels = f'job="{self.job}",query="{entry["query"]}",sink="{entry["sink"]}"'
            lines.append(f"penstock_audit_unaccounted_rows{{{labels}}} {self.unaccounted(entry['sink'])}")
        return "\n".join(lines) + "\n"


class Audit:
    """Of one job; `run` may be called again, and Kafka's topics are then read from where the last run ended. `columns`
    are what the program writes into each sink, where that is known."""

    def __init__(
        self, ledgers: JobLedgers, sinks: Mapping[str, Any], columns: Mapping[str, Columns], *, shared: bool = False
    ) -> None:
        self._ledgers, self._sinks, self._columns, self._shared = ledgers, sinks, columns, shared
        self._kafka: dict[str, KafkaReader] = {}

    def run(self) -> Report:
        report = Report(self._ledgers.job)
        for query in self._ledgers.queries:
            complete, under_way = decided_of(query)
            for uid in sorted({*query.sinks, *(writer.sink for writer in complete)}):
                mine = [writer for writer in complete if writer.sink == uid]
                epochs = [writer.epoch for writer in mine]
                report.sinks.append({
                    "query": query.uid, "sink": uid, "kind": type(self._sinks.get(uid)).__name__,
                    "first_epoch": min(epochs, default=None), "last_epoch": max(epochs, default=None),
                    "writers": len(mine), "rows": sum(writer.rows for writer in mine),
                    "not_yet": len({writer.epoch for writer in under_way if writer.sink == uid}),
                })  # fmt: skip
                if mine:
                    visible = self._read(uid, mine, partial(_later, query, uid, mine))
                    found = compare(mine, visible, shared=self._shared)
                    report.findings += found
                    report.epochs += _by_epoch(mine, found, told_apart=not visible.unprovable)
        return report

    def _read(self, uid: str, decided: Sequence[Decided], later: Later) -> Visible:
        sink = self._sinks.get(uid)
        kind = type(sink).__name__
        if sink is None:
            return Visible(unprovable="the program no longer has this sink")
        if getattr(sink, "mode", "") == "upsert":
            return Visible(unprovable="an upsert replaces rows of earlier epochs")
        if kind == "KafkaSink":
            return self._kafka.setdefault(uid, KafkaReader(sink)).read(decided, later)
        if kind in _READERS:
            return _READERS[kind](sink, decided, self._columns.get(uid, ()), later)
        return Visible(unprovable=_UNPROVABLE.get(kind, "there is no reader for this kind of sink"))


def _by_epoch(decided: Sequence[Decided], found: Sequence[Finding], told_apart: bool) -> Iterator[dict[str, Any]]:
    """Rows of each epoch. `visible` is None where the place does not show which epoch its rows are of."""
    told_apart = told_apart and all(each.epoch is not None for each in found if each.kind in (*_SIGN, CHANGED))
    for epoch in sorted({writer.epoch for writer in decided}):
        rows = sum(writer.rows for writer in decided if writer.epoch == epoch)
        mine = [each for each in found if each.epoch == epoch]
        visible = rows + sum(_SIGN.get(each.kind, 0) * each.rows for each in mine) if told_apart else None
        unaccounted = sum(each.rows for each in mine if each.kind in ANOMALIES)
        about = {"query": decided[0].query, "sink": decided[0].sink, "epoch": epoch}
        yield {**about, "decided": rows, "visible": visible, "unaccounted": unaccounted}


def _later(query: QueryLedger, sink: str, decided: Sequence[Decided]) -> list[Decided]:
    """Writers that may have become visible while the sink was read: rows of theirs are no surplus, and not compared."""
    known = {(writer.epoch, writer.generation) for writer in decided}
    everything = [writer for writers in decided_of(query) for writer in writers]
    return [each for each in everything if each.sink == sink and (each.epoch, each.generation) not in known]


def decided_of(query: QueryLedger) -> tuple[list[Decided], list[Decided]]:
    """The writers of every complete epoch, oldest first; and those of epochs of which that is not known.

    Of several decisions for one epoch of one history, the newest was carried out. Rows of a history that a restore has
    ended stay visible; whether its last epoch was completed is not known."""
    newest: dict[tuple[int, str, str], Manifest] = {}
    for manifest in query.ledger.all_manifests():
        key = manifest.decision.id.epoch, manifest.history or "", manifest.query or ""
        if key not in newest or newest[key].decision.id < manifest.decision.id:
            newest[key] = manifest
    current, (next_epoch, _) = history_of(query.log), query.log.next_epoch()
    last = {key[1:]: key[0] for key in sorted(newest)}
    complete, under_way = list[Decided](), list[Decided]()
    for (epoch, *history), manifest in sorted(newest.items(), key=lambda entry: entry[0]):
        end = next_epoch if history[0] == current else last[history[0], history[1]]
        for item in manifest.decision.to_commit:
            at_sink = _delivered(query, item, epoch) if item.logged else item
            found = at_sink or item
            of_writer = (found.writer, found.rows, found.checksum, found.payload)
            writer = Decided(query.uid, item.sink, epoch, manifest.decision.id.generation, *of_writer)
            (complete if epoch < end and at_sink is not None else under_way).append(writer)
    return complete, under_way


def _delivered(query: QueryLedger, item: Committable, epoch: int) -> Committable | None:
    """What the drainer committed of a writer in the in-flight log; None while it waits there."""
    if any(entry.epoch == epoch for entry in query.waiting(item.sink)):
        return None
    ledger = query.drain_ledger(item.sink)
    newest = max(ledger.manifests(epoch) if ledger else (), key=lambda each: each.decision.id, default=None)
    rewritten = [each for each in (newest.decision.to_commit if newest else ()) if each.writer == item.writer]
    return rewritten[0] if rewritten else item.at_sink or item
