"""The names of all metrics, what each counts, and its labels; docs/reference/metrics.md says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

JOB_LABEL = "job_name"
"""On every series. `job` is Prometheus's own label, for the group of targets."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of all histograms, in seconds."""


@dataclass(frozen=True)
class Family:
    """One name: what it counts, and its labels besides the job's."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ("query",)


FAMILIES: Mapping[str, Family] = {
    "penstock_build_info": Family("gauge", "Always 1; versions are in the labels.", ("version", "pyspark", "python")),
    "penstock_job_start_timestamp_seconds": Family("gauge", "When the run was first started.", ()),
    "penstock_job_state": Family("gauge", "1 for the state the job is in, 0 for the others.", ("state",)),
    "penstock_restarts_total": Family("counter", "Restarts of the run, by itself and by its supervisor.", ()),
    "penstock_savepoints_total": Family("counter", "Savepoints taken since the driver began.", ()),
    "penstock_generation": Family("gauge", "The query's generation."),
    "penstock_recoveries_total": Family("counter", "Recoveries, by what they found to do.", ("query", "action")),
    "penstock_recovery_seconds": Family("histogram", "How long recoveries took."),
    "penstock_epochs_completed_total": Family("counter", "Complete epochs."),
    "penstock_epochs_failed_total": Family("counter", "Attempts at an epoch that failed."),
    "penstock_epochs_skipped_total": Family("counter", "At most once: epochs of which rows were dropped."),
    "penstock_epoch_seconds": Family("histogram", "From an epoch's barrier until it was complete."),
    "penstock_epoch_phase_seconds": Family("histogram", "The phases of complete epochs.", ("query", "phase")),
    "penstock_epoch_opened_timestamp_seconds": Family("gauge", "When the epoch under way began; 0 for none."),
    "penstock_last_completed_epoch": Family("gauge", "The number of the newest complete epoch."),
    "penstock_last_completed_timestamp_seconds": Family("gauge", "When it was complete."),
    "penstock_rows_total": Family("counter", "Rows written by complete epochs, over all sinks of the query."),
    "penstock_rows_skipped_total": Family("counter", "At most once: rows that were dropped."),
    "penstock_source_lag_rows": Family(
        "gauge", "Rows that a source partition is ahead of the query.", ("query", "source", "partition")
    ),
    "penstock_watermark_timestamp_seconds": Family("gauge", "The query's watermark."),
    "penstock_alignment_wait_seconds": Family("gauge", "How long the first partition waited for the slowest."),
    "penstock_alignment_skew_ratio": Family("gauge", "How many times the median the slowest partition took."),
    "penstock_transactions_open": Family("gauge", "Writers that are prepared and not ended, in the epoch under way."),
    "penstock_transactions_in_doubt": Family("gauge", "Writers that are decided and not proven to be visible."),
    "penstock_transactions_aborted_total": Family("counter", "Leftovers that were found and aborted."),
    "penstock_inflight_bytes": Family("gauge", "What waits in the in-flight log.", ("query", "sink")),
    "penstock_inflight_epochs": Family("gauge", "Epochs that wait in the in-flight log.", ("query", "sink")),
    "penstock_sink_waiting": Family("gauge", "1 while the sink takes nothing of that log.", ("query", "sink")),
    "penstock_throttled": Family("gauge", "1 while the in-flight log is full and the next epoch waits."),
    "penstock_throttled_seconds_total": Family("counter", "How long epochs have waited for room in that log."),
    "penstock_state_rows": Family("gauge", "Rows of state after the newest recorded epoch, over all operators."),
    "penstock_state_bytes": Family("gauge", "The size of that state."),
}  # fmt: skip
