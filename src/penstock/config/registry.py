"""Every key that is known: our options, and those of Flink's that mean nothing here.

The latter are accepted, so that a Flink configuration file works as it is, and listed once. Where Penstock has options
of its own, Flink's other keys are named one by one, so that a misspelt one is noticed. The rest is known by its family.
"""

from __future__ import annotations

import difflib

from penstock.config.availability import AVAILABILITY_OPTIONS
from penstock.config.checkpoints import CHECKPOINT_OPTIONS
from penstock.config.log import LOG_OPTIONS
from penstock.config.option import Option
from penstock.config.recovery import RECOVERY_OPTIONS
from penstock.config.rest import REST_OPTIONS
from penstock.config.restart_strategy import RESTART_OPTIONS
from penstock.config.state import STATE_OPTIONS

OPTIONS: tuple[Option, ...] = (
    *CHECKPOINT_OPTIONS,
    *STATE_OPTIONS,
    *RESTART_OPTIONS,
    *RECOVERY_OPTIONS,
    *AVAILABILITY_OPTIONS,
    *REST_OPTIONS,
    *LOG_OPTIONS,
)
BY_KEY = {key: option for option in OPTIONS for key in (option.key, *option.aliases)}
BY_NAME = {(option.part, option.name): option for option in OPTIONS}


def nearest(key: str) -> str | None:
    """The known key that is spelt most like this one, if any is close."""
    known = [*BY_KEY, *_KEYS]
    found = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return found[0] if found else None


_FAMILIES = (
    "akka", "application-result-store", "blob", "cep", "classloader", "cleanup-strategy", "client", "cluster",
    "compiler", "completed-application-store", "containerized", "env", "events", "external-resource",
    "external-resources", "flink", "fs", "hadoop", "heartbeat", "high-availability", "historyserver", "io", "java",
    "jmx", "job-event", "job-result-store",
    "jobmanager", "jobstore", "kubernetes", "local", "materialized-table", "mdc", "metrics",
    "minicluster", "optimizer", "pekko", "pipeline", "plugin", "process", "python", "query", "queryable-state",
    "resourcemanager", "rest.async", "rest.cache", "rest.client", "rest.flamegraph", "rest.profiling", "rest.retry",
    "rest.server", "s3", "s3a", "scheduler-mode", "security", "shuffle-service-factory", "sink", "slot",
    "slotmanager", "slow-task-detector", "sql-client", "sql-gateway", "table", "task", "taskmanager", "traces", "user",
    "web", "yarn", "zookeeper",
    "execution.batch", "execution.buffer-timeout", "execution.checkpointing.cleaner",
    "execution.checkpointing.file-merging", "execution.checkpointing.local-backup", "execution.embedded",
    "execution.program-config", "execution.sorted-inputs",
    "state.backend.forst", "state.backend.latency-track", "state.backend.rocksdb.block",
    "state.backend.rocksdb.bloom-filter", "state.backend.rocksdb.checkpoint", "state.backend.rocksdb.compaction",
    "state.backend.rocksdb.compression", "state.backend.rocksdb.files", "state.backend.rocksdb.log",
    "state.backend.rocksdb.manual-compaction", "state.backend.rocksdb.metrics", "state.backend.rocksdb.rescaling",
    "state.backend.rocksdb.thread", "state.backend.rocksdb.timer-service", "state.backend.rocksdb.writebuffer",
    "state.changelog.dstl", "state.changelog.periodic-materialize", "state.checkpoint.cleaner", "state.latency-track",
    "state.size-track", "state.storage",
)  # fmt: skip

_KEYS = frozenset({
    "execution.allow-client-job-configurations", "execution.attached", "execution.batch-shuffle-mode",
    "execution.buffer-timeout", "execution.checkpointing.create-subdir",
    "execution.checkpointing.data-inline-threshold", "execution.checkpointing.during-recovery.enabled",
    "execution.checkpointing.force-unaligned", "execution.checkpointing.id-of-ignored-in-flight-data",
    "execution.checkpointing.interval-during-backlog",
    "execution.checkpointing.recover-without-channel-state.checkpoint-id",
    "execution.checkpointing.snapshot-compression", "execution.checkpointing.sync-phase-timeout",
    "execution.checkpointing.unaligned.forced",
    "execution.checkpointing.unaligned.interruptible-timers.emit-intermediate-watermarks",
    "execution.checkpointing.unaligned.interruptible-timers.enabled",
    "execution.checkpointing.unaligned.max-subtasks-per-channel-state-file",
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled",
    "execution.checkpointing.write-buffer-size", "execution.job-listeners", "execution.job-status-changed-listeners",
    "execution.runtime-mode", "execution.shutdown-on-application-finish",
    "execution.shutdown-on-attached-exit", "execution.sort-keyed-partition.memory", "execution.sort-partition.memory",
    "execution.state-recovery.from-local", "execution.state-recovery.without-channel-state.checkpoint-id",
    "execution.submit-failed-job-on-application-error", "execution.target",
    "execution.terminate-application-on-any-job-terminated-exceptionally",
    "rest.await-leader-timeout", "rest.bind-port", "rest.connection-timeout", "rest.idleness-timeout",
    "rest.url-prefix",
    "state.backend.async", "state.backend.local-recovery",
    "state.backend.rocksdb.incremental-restore-async-compact-after-rescale", "state.backend.rocksdb.localdir",
    "state.backend.rocksdb.memory.fixed-per-tm", "state.backend.rocksdb.memory.partitioned-index-filters",
    "state.backend.rocksdb.options-factory", "state.backend.rocksdb.predefined-options",
    "state.backend.rocksdb.restore-overlap-fraction-threshold", "state.backend.rocksdb.use-bloom-filter",
    "state.backend.rocksdb.use-ingest-db-restore-mode", "state.backend.rocksdb.write-batch-size",
    "state.changelog.max-failures-allowed", "state.changelog.storage", "state.checkpoints.create-subdir",
})  # fmt: skip


def means_nothing_here(key: str) -> bool:
    """Whether it is a key of Flink's that has no part in a job here."""
    return key in _KEYS or any(key == family or key.startswith(f"{family}.") for family in _FAMILIES)
