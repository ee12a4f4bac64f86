"""A running job's numbers for Prometheus, read from the view of the run and served as `/metrics`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.ops.process.registry import Registration, State
from penstock.ops.server.control import Lifecycle
from penstock.ops.server.run_view import Attempt, Event, QueryView, RunView

JOB_LABEL = "job_name"  # On every series. `job` is Prometheus's own label, for the group of targets.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of all histograms, in seconds."""


class Family(NamedTuple):
    """One name: what it counts, and its labels besides the job's."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("query",)


ON_SCRAPE: Mapping[str, Family] = {
    "penstock_build_info": Family("gauge", "Always 1; versions are in the labels.", ("version", "pyspark", "python")),
    "penstock_job_start_timestamp_seconds": Family("gauge", "When the run was first started.", ()),
    "penstock_job_state": Family("gauge", "1 for the state the job is in, 0 for the others.", ("state",)),
    "penstock_restarts_total": Family("counter", "Restarts of the run, by itself and by its supervisor.", ()),
    "penstock_source_lag_rows": Family(
        "gauge", "Rows that a source partition is ahead of the query.", ("query", "source", "partition")
    ),
    "penstock_watermark_timestamp_seconds": Family("gauge", "The query's watermark."),
}
"""Those that no event brings: the job is asked for them."""

ON_EVENT: Mapping[str, Family] = {
    "penstock_savepoints_total": Family("counter", "Savepoints taken since the driver began.", ()),
    "penstock_generation": Family("gauge", "The query's generation."),
    "penstock_recoveries_total": Family("counter", "Recoveries, by what they found to do.", ("query", "action")),
    "penstock_recovery_seconds": Family("histogram", "How long recoveries took."),
    "penstock_epochs_completed_total": Family("counter", "Complete epochs."),
    "penstock_epochs_failed_total": Family("counter", "Attempts at an epoch that failed."),
    "penstock_epochs_skipped_total": Family("counter", "At most once: epochs of which rows were dropped."),
    "penstock_epoch_seconds": Family("histogram", "From an epoch's barrier until it was complete."),
    "penstock_epoch_phase_seconds": Family("histogram", "The phases of complete epochs.", ("query", "phase")),
    "penstock_epoch_opened_timestamp_seconds": Family("gauge", "When the epoch in progress began; 0 for none."),
    "penstock_last_completed_epoch": Family("gauge", "The number of the newest complete epoch."),
    "penstock_last_completed_timestamp_seconds": Family("gauge", "When it was complete."),
    "penstock_rows_total": Family("counter", "Rows written by complete epochs, over all sinks of the query."),
    "penstock_rows_aside_total": Family("counter", "Rows that a sink refused and its aside sink has."),
    "penstock_rows_skipped_total": Family("counter", "At most once: rows that were dropped."),
    "penstock_alignment_wait_seconds": Family("gauge", "How long the first partition waited for the slowest."),
    "penstock_alignment_skew_ratio": Family("gauge", "How many times the median the slowest partition took."),
    "penstock_transactions_open": Family("gauge", "Writers that are prepared and not ended, in the epoch in progress."),
    "penstock_transactions_in_doubt": Family("gauge", "Writers that are decided and not proven to be visible."),
    "penstock_transactions_aborted_total": Family("counter", "Leftover transactions that were aborted."),
    "penstock_inflight_bytes": Family("gauge", "What waits in the in-flight log.", ("query", "sink")),
    "penstock_inflight_epochs": Family("gauge", "Epochs that wait in the in-flight log.", ("query", "sink")),
    "penstock_sink_waiting": Family("gauge", "1 while the sink takes nothing of that log.", ("query", "sink")),
    "penstock_throttled": Family("gauge", "1 while the in-flight log is full and the next epoch waits."),
    "penstock_throttled_seconds_total": Family("counter", "How long epochs have waited for room in that log."),
    "penstock_state_rows": Family("gauge", "Rows of state after the newest recorded epoch, over all operators."),
    "penstock_state_bytes": Family("gauge", "The size of that state."),
}

FAMILIES: Mapping[str, Family] = {**ON_SCRAPE, **ON_EVENT}

_KINDS: Mapping[str, Callable[..., Any]] = {
    "counter": Counter, "gauge": Gauge, "histogram": partial(Histogram, buckets=BUCKETS)
}  # fmt: skip
#: Present from a query's start, so that rates see the first of each.
_FROM_ZERO = (
    "penstock_epochs_completed_total", "penstock_epochs_failed_total", "penstock_rows_total", "penstock_throttled",
)  # fmt: skip
#: Of the newest record: its field, and how many of its units make one of the gauge's.
_RECORDED = (
    ("penstock_state_rows", "state_rows", 1), ("penstock_state_bytes", "state_bytes", 1),
    ("penstock_alignment_skew_ratio", "skew", 1), ("penstock_alignment_wait_seconds", "waited_ms", 1000),
)  # fmt: skip
Positions = Callable[[], Mapping[str, Mapping[str, Any]]]
Values = dict[tuple[str, ...], float]


class Metrics:
    """`positions`, by query: the `watermark` in ms; the `sources`, by uid, with partitions and the `lag` of each."""

    def __init__(
        self, view: RunView, registration: Registration, lifecycle: Lifecycle, positions: Positions | None = None
    ) -> None:
        self._view, self._job = view, registration.entry.name
        self._registry = _Registry(auto_describe=False)
        self._registry.register(_OnScrape(registration, lifecycle, positions))
        self._metrics: dict[str, Any] = {
            name: _KINDS[family.kind](name, family.help, (JOB_LABEL, *family.labels), registry=self._registry)
            for name, family in ON_EVENT.items()
        }
        self._counted_failures: dict[str, int] = {}  # by query: an epoch whose `failed` event is still to come
        view.on_attempt(self._observe)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The numbers in the form that a client with this `Accept` understands best, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def on_event(self, event: Event) -> None:
        """An `Events` listener, behind the view's."""
        if event["event"] == "savepoint":
            self._of("penstock_savepoints_total").inc()
        query = self._view.query(event.get("query"))
        if query is not None:
            for name in _FROM_ZERO:
                self._of(name, query.uid)
            self._count(query, event)
            self._set_gauges(query)

    def _of(self, name: str, *labels: str) -> Any:
        return self._metrics[name].labels(self._job, *labels)

    def _set_gauges(self, query: QueryView) -> None:
        opened = query.attempt.opened if query.attempt is not None else 0
        self._of("penstock_generation", query.uid).set(query.generation)
        self._of("penstock_epoch_opened_timestamp_seconds", query.uid).set(opened)
        self._of("penstock_transactions_open", query.uid).set(query.transactions_open)
        self._of("penstock_transactions_in_doubt", query.uid).set(query.transactions_in_doubt)

    def _count(self, query: QueryView, event: Event) -> None:
        uid = query.uid
        match event["event"]:
            case "recovered":
                self._of("penstock_recoveries_total", uid, str(event["action"])).inc()
                self._of("penstock_recovery_seconds", uid).observe(float(event["seconds"]))
            case "completed":
                self._complete(query, event)
            case "checkpoint" if event.get("outcome") == "complete":
                if event.get("sums"):
                    self._of("penstock_rows_aside_total", uid).inc(event["sums"]["aside"])
                for name, key, unit in _RECORDED:
                    if event.get(key) is not None:
                        self._of(name, uid).set(event[key] / unit)
            case "checkpoint_failed":
                self._of("penstock_epochs_failed_total", uid).inc()
                if not event.get("tolerated"):
                    self._counted_failures[uid] = event["epoch"]
            case "failed":
                is_counted = self._counted_failures.pop(uid, None) == event.get("epoch")
                if not is_counted and not str(event.get("error")).startswith("JobStopped"):  # a stop is no failure
                    self._of("penstock_epochs_failed_total", uid).inc()
            case "skipped":
                self._of("penstock_epochs_skipped_total", uid).inc()
                self._of("penstock_rows_skipped_total", uid).inc(int(event["rows"]))
            case "logged" | "drained" | "drain_waiting":
                self._set_inflight(query, str(event["sink"]), str(event["event"]))
            case "throttled":
                self._of("penstock_throttled", uid).set(1)
            case "flowing":
                self._of("penstock_throttled", uid).set(0)
                self._of("penstock_throttled_seconds_total", uid).inc(float(event["seconds"]))
            case "aborted":
                self._of("penstock_transactions_aborted_total", uid).inc(event["count"])

    def _complete(self, query: QueryView, event: Event) -> None:
        attempt = query.completed
        if attempt is not None and attempt.epoch == event["epoch"]:
            self._of("penstock_rows_total", query.uid).inc(max(0, attempt.rows - attempt.skipped_rows))
        self._of("penstock_epochs_completed_total", query.uid).inc()
        self._of("penstock_last_completed_epoch", query.uid).set(event["epoch"])
        self._of("penstock_last_completed_timestamp_seconds", query.uid).set(event["time"])
        self._counted_failures.pop(query.uid, None)

    def _set_inflight(self, query: QueryView, sink: str, event: str) -> None:
        if event != "logged":
            self._of("penstock_sink_waiting", query.uid, sink).set(event == "drain_waiting")
        if event != "drain_waiting":
            epochs, size = query.inflight[sink]
            self._of("penstock_inflight_epochs", query.uid, sink).set(epochs)
            self._of("penstock_inflight_bytes", query.uid, sink).set(size)

    def _observe(self, attempt: Attempt) -> None:
        if attempt.error is None:
            self._of("penstock_epoch_seconds", attempt.query).observe(max(0.0, attempt.ended - attempt.opened))
            for phase, begin, end in attempt.phases():
                self._of("penstock_epoch_phase_seconds", attempt.query, phase).observe(end - begin)


class _Registry(CollectorRegistry):
    """Without the times at which series were created, and without families that have no series yet."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            if metric.samples:
                yield metric


class _OnScrape(Collector):
    def __init__(self, registration: Registration, lifecycle: Lifecycle, positions: Positions | None) -> None:
        self._registration, self._lifecycle, self._positions = registration, lifecycle, positions

    def collect(self) -> Iterator[Metric]:
        values = self._values(self._lifecycle.status())
        for name, family in ON_SCRAPE.items():
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(name, family.help, labels=(JOB_LABEL, *family.labels))
            for labels, value in values[name].items():
                metric.add_metric((self._registration.entry.name, *labels), value)
            yield metric

    def _values(self, status: Mapping[str, Any]) -> dict[str, Values]:
        entry = self._registration.entry
        lags: Values = {}
        watermarks: Values = {}
        for query, facts in self._query_positions(status).items():
            if facts.get("watermark") is not None:
                watermarks[query,] = facts["watermark"] / 1000
            for source, partitions in (facts.get("sources") or {}).items():
                for partition in partitions:
                    if partition.get("lag") is not None:
                        lags[query, str(source), str(partition["partition"])] = float(partition["lag"])
        pyspark = str(getattr(sys.modules.get("pyspark"), "__version__", ""))
        return {
            "penstock_build_info": {(__version__, pyspark, platform.python_version()): 1.0},
            "penstock_job_start_timestamp_seconds": {(): entry.start / 1000},
            "penstock_job_state": {(str(state.value),): float(state is entry.state) for state in State},
            "penstock_restarts_total": {(): float(entry.restarts)},
            "penstock_source_lag_rows": lags,
            "penstock_watermark_timestamp_seconds": watermarks,
        }

    def _query_positions(self, status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        if self._positions is None:
            return status.get("queries") or {}
        try:
            return self._positions()
        except Exception:  # the job starts or ends; its other numbers are valid all the same
            return {}
