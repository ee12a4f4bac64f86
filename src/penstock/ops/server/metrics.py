"""A running job's numbers for Prometheus: fed by events, asked for under `/metrics`.

Feeding costs a few additions for each event, nothing for a row, and needs no library; `prometheus-client` is loaded
when somebody asks. `metric_families` has every name there is.
"""

from __future__ import annotations

import bisect
import platform
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from penstock import __version__
from penstock.ops.process.registry import State
from penstock.ops.server.metric_families import BUCKETS, FAMILIES, JOB_LABEL
from penstock.ops.server.phases import EpochTimes, Phases

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.ops.process.registration import Registration
    from penstock.ops.server.lifecycle import Lifecycle

#: There from a query's start, so that rates see the first of each.
_FROM_ZERO = (
    "penstock_epochs_completed_total", "penstock_epochs_failed_total", "penstock_rows_total",
    "penstock_transactions_open", "penstock_transactions_in_doubt", "penstock_throttled",
    "penstock_epoch_opened_timestamp_seconds",
)  # fmt: skip

Labels = tuple[str, ...]
Positions = Callable[[], Mapping[str, Mapping[str, Any]]]


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many are not above it."""
        found, below = [], 0
        for bound, count in zip((*map(float, BUCKETS), float("inf")), self.counts, strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(below)))
        return found


class Metrics:
    """One run's numbers. Also a collector, as `prometheus-client` has them: a registry of its own for each scrape.

    `positions` tells, by query, the `watermark` in milliseconds and the `sources`, by uid, each with its partitions and
    their `lag`. It may take seconds. Without it, what the job's status says of that counts."""

    def __init__(self, registration: Registration, lifecycle: Lifecycle, positions: Positions | None = None) -> None:
        self._registration, self._lifecycle, self._positions = registration, lifecycle, positions
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in FAMILIES}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: {} for name in FAMILIES}
        self._phases = Phases(self._observe)
        self._rows: dict[str, int] = {}  # of the epoch under way
        self._writers: dict[str, int] = {}
        self._given_up: dict[str, int] = {}  # epochs counted as failed whose own end comes after it

    # Fed by events

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An `Events` listener."""
        name, query = str(event["event"]), event.get("query")
        with self._lock:
            self._phases.on_event(event)
            if name == "savepoint":
                self._add("penstock_savepoints_total", 1)
            handle = _HANDLERS.get(name)
            if handle is not None and isinstance(query, str):
                handle(self, query, event)

    def _started(self, query: str, event: Mapping[str, Any]) -> None:
        for name in _FROM_ZERO:
            self._values[name].setdefault((query,), 0.0)
        self._set("penstock_generation", event["generation"], query)

    def _recovered(self, query: str, event: Mapping[str, Any]) -> None:
        self._add("penstock_recoveries_total", 1, query, str(event["action"]))
        self._histogram("penstock_recovery_seconds", query).observe(float(event["seconds"]))
        self._end_transactions(query)

    def _opened(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_epoch_opened_timestamp_seconds", event["time"], query)
        self._set("penstock_transactions_open", 0, query)
        self._rows[query] = 0

    def _precommitted(self, query: str, event: Mapping[str, Any]) -> None:
        self._rows[query] = int(event["rows"])
        self._writers[query] = int(event.get("writers") or 0)
        self._set("penstock_transactions_open", self._writers[query], query)

    def _decided(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_transactions_in_doubt", self._writers.get(query, 0), query)

    def _committed(self, query: str, event: Mapping[str, Any]) -> None:
        self._end_transactions(query)

    def _completed(self, query: str, event: Mapping[str, Any]) -> None:
        self._add("penstock_epochs_completed_total", 1, query)
        self._add("penstock_rows_total", max(0, self._rows.pop(query, 0)), query)
        self._set("penstock_last_completed_epoch", event["epoch"], query)
        self._set("penstock_last_completed_timestamp_seconds", event["time"], query)
        self._set("penstock_epoch_opened_timestamp_seconds", 0, query)
        self._end_transactions(query)
        self._given_up.pop(query, None)

    def _checkpoint_failed(self, query: str, event: Mapping[str, Any]) -> None:
        self._add("penstock_epochs_failed_total", 1, query)
        if not event.get("tolerated"):
            self._given_up[query] = event["epoch"]

    def _failed(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_epoch_opened_timestamp_seconds", 0, query)
        is_counted = self._given_up.pop(query, None) == event.get("epoch")
        is_stop = str(event.get("error")).startswith("JobStopped")  # which is no failure
        if not is_counted and not is_stop:
            self._add("penstock_epochs_failed_total", 1, query)

    def _skipped(self, query: str, event: Mapping[str, Any]) -> None:
        rows = int(event["rows"])
        self._add("penstock_epochs_skipped_total", 1, query)
        self._add("penstock_rows_skipped_total", rows, query)
        self._rows[query] = self._rows.get(query, 0) - rows

    def _logged(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_inflight_epochs", event["backlog"], query, str(event["sink"]))
        self._set("penstock_inflight_bytes", event["backlog_bytes"], query, str(event["sink"]))
        self._end_transactions(query)

    def _drained(self, query: str, event: Mapping[str, Any]) -> None:
        sink, left = str(event["sink"]), int(event["backlog"])
        before = self._values["penstock_inflight_bytes"].get((query, sink), 0.0)
        self._set("penstock_inflight_epochs", left, query, sink)
        self._set("penstock_inflight_bytes", max(0.0, before - event["bytes"]) if left else 0, query, sink)
        self._set("penstock_sink_waiting", 0, query, sink)

    def _drain_waiting(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_sink_waiting", 1, query, str(event["sink"]))

    def _throttled(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_throttled", 1, query)

    def _flowing(self, query: str, event: Mapping[str, Any]) -> None:
        self._set("penstock_throttled", 0, query)
        self._add("penstock_throttled_seconds_total", float(event["seconds"]), query)

    def _aborted(self, query: str, event: Mapping[str, Any]) -> None:
        self._add("penstock_transactions_aborted_total", event["count"], query)

    def _recorded(self, query: str, event: Mapping[str, Any]) -> None:
        if event.get("outcome") != "complete":
            return
        for name, key, unit in (
            ("penstock_state_rows", "state_rows", 1),
            ("penstock_state_bytes", "state_bytes", 1),
            ("penstock_alignment_skew_ratio", "skew", 1),
            ("penstock_alignment_wait_seconds", "waited_ms", 1000),
        ):
            value = event.get(key)
            if value is not None:
                self._set(name, value / unit, query)

    def _end_transactions(self, query: str) -> None:
        self._set("penstock_transactions_open", 0, query)
        self._set("penstock_transactions_in_doubt", 0, query)

    def _observe(self, epoch: EpochTimes) -> None:
        if epoch.error is None:
            self._histogram("penstock_epoch_seconds", epoch.query).observe(max(0.0, epoch.ended - epoch.opened))
            for phase, begin, end in epoch.phases():
                self._histogram("penstock_epoch_phase_seconds", epoch.query, phase).observe(end - begin)

    def _add(self, name: str, value: float, *labels: str) -> None:
        values = self._values[name]
        values[labels] = values.get(labels, 0.0) + value

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values[name][labels] = float(value)

    def _histogram(self, name: str, *labels: str) -> _Histogram:
        return self._histograms[name].setdefault(labels, _Histogram())

    # Asked by Prometheus

    def render(self, accept: str) -> tuple[bytes, str]:
        """What there is now, in the form that a client with this `Accept` understands best, and its content type.
        `ImportError` where prometheus-client is not installed."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry(auto_describe=False)
        registry.register(cast("Collector", self))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def describe(self) -> Iterable[Metric]:
        """Nothing: no two collectors share this registry."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family that has something to say."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        asked = self._ask()
        with self._lock:
            for name, family in FAMILIES.items():
                labels = (JOB_LABEL, *family.labels)
                found: Metric
                if family.kind == "histogram":
                    found = histogram = HistogramMetricFamily(name, family.help, labels=labels)
                    for values, one in self._histograms[name].items():
                        histogram.add_metric(self._labels(values), buckets=one.buckets(), sum_value=one.total)
                else:
                    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
                    found = kind(name, family.help, labels=labels)
                    for values, value in (asked.get(name) or self._values[name]).items():
                        found.add_metric(self._labels(values), value)
                if found.samples:
                    yield found

    def _labels(self, values: Labels) -> list[str]:
        return [self._registration.entry.name, *values]

    def _ask(self) -> dict[str, dict[Labels, float]]:
        """What no event tells: it is asked for when somebody wants to know."""
        status = self._lifecycle.status()
        entry = self._registration.entry
        lags: dict[Labels, float] = {}
        watermarks: dict[Labels, float] = {}
        for query, facts in self._look(status).items():
            if facts.get("watermark") is not None:
                watermarks[query,] = facts["watermark"] / 1000
            for source, partitions in (facts.get("sources") or {}).items():
                for partition in partitions:
                    if partition.get("lag") is not None:
                        lags[query, str(source), str(partition["partition"])] = float(partition["lag"])
        return {
            "penstock_build_info": {(__version__, _pyspark(), platform.python_version()): 1.0},
            "penstock_job_start_timestamp_seconds": {(): entry.start / 1000},
            "penstock_job_state": {(str(state.value),): float(state is entry.state) for state in State},
            "penstock_restarts_total": {(): float(entry.restarts)},
            "penstock_source_lag_rows": lags,
            "penstock_watermark_timestamp_seconds": watermarks,
        }

    def _look(self, status: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        if self._positions is None:
            return cast("Mapping[str, Mapping[str, Any]]", status.get("queries", {}))
        try:
            return self._positions()
        except Exception:  # the job is on its way in or out; the other numbers count all the same
            return {}


def _pyspark() -> str:
    """The version that this process has loaded, if it has."""
    return str(getattr(sys.modules.get("pyspark"), "__version__", ""))


_HANDLERS: Mapping[str, Callable[[Metrics, str, Mapping[str, Any]], None]] = {
    "started": Metrics._started,
    "recovered": Metrics._recovered,
    "opened": Metrics._opened,
    "precommitted": Metrics._precommitted,
    "decided": Metrics._decided,
    "committed": Metrics._committed,
    "completed": Metrics._completed,
    "checkpoint": Metrics._recorded,
    "checkpoint_failed": Metrics._checkpoint_failed,
    "failed": Metrics._failed,
    "skipped": Metrics._skipped,
    "logged": Metrics._logged,
    "drained": Metrics._drained,
    "drain_waiting": Metrics._drain_waiting,
    "throttled": Metrics._throttled,
    "flowing": Metrics._flowing,
    "aborted": Metrics._aborted,
}


def endpoint(metrics: Metrics | None) -> Callable[[Request], Awaitable[Response]]:
    """What answers `GET /metrics`."""
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    async def scrape(request: Request) -> Response:
        if metrics is None:
            raise HTTPException(404, "There are no metrics here: ask a running job's own address")
        try:
            body, content_type = await run_in_threadpool(metrics.render, request.headers.get("Accept", ""))
        except ImportError:
            raise HTTPException(501, "prometheus-client is not installed where the job runs") from None
        return Response(body, headers={"Content-Type": content_type})

    return scrape
