"""The options as the reference lists them; `python scripts/settings_table.py docs/reference/settings.md` writes them
there. A test compares the page with the code."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.config.levels import ALL as OPTIONS
from penstock.config.option import Option

BEGIN = "<!-- made by python scripts/settings_table.py -->"
END = "<!-- end of what is made -->"

_RESTART = "tests/unit/config/test_restart.py::"
_BACKENDS = "tests/integration/test_state_backends.py::"
_RECOVERY = "tests/unit/config/test_recovery_options.py::"
_SERVER = "tests/unit/ops/server/test_server.py::"
_LIMITS = "tests/faults/test_checkpoint_limits.py::"
_UNALIGNED = "tests/faults/test_unaligned.py::"
_SETTINGS = "tests/unit/config/test_settings.py::"
_MODES = "tests/faults/test_modes.py::"
_RETENTION = "tests/integration/test_retention.py::"
_LEDGER = "tests/unit/checkpoint/test_ledger.py::"
_ACCESS = "tests/unit/ops/server/test_access.py::"

#: Each option, and the tests that show it.
SHOWN_BY = {
    "execution.checkpointing.interval": (
        "tests/integration/test_settings_in_spark.py::test_an_interval_is_spark_s_trigger",
    ),
    "execution.checkpointing.mode": (
        f"{_MODES}test_exactly_once_neither_loses_nor_doubles",
        f"{_MODES}test_at_least_once_doubles_and_never_loses",
        f"{_MODES}test_at_most_once_loses_and_never_doubles",
    ),
    "execution.checkpointing.timeout": (f"{_LIMITS}test_a_checkpoint_that_takes_too_long_is_aborted_and_tried_again",),
    "execution.checkpointing.min-pause": (f"{_LIMITS}test_a_pause_lies_between_two_checkpoints",),
    "execution.checkpointing.max-concurrent-checkpoints": (
        f"{_LIMITS}test_the_next_epoch_is_prepared_while_one_commits",
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": (
        f"{_LIMITS}test_more_failures_than_tolerated_fail_the_job",
    ),
    "execution.checkpointing.unaligned.enabled": (
        f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still",
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": (
        f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still",
    ),
    "execution.checkpointing.externalized-checkpoint-retention": (
        f"{_RETENTION}test_delete_on_cancellation",
        f"{_RETENTION}test_retain_on_cancellation",
    ),
    "execution.checkpointing.num-retained": (f"{_RETENTION}test_num_retained",),
    "execution.checkpointing.dir": ("tests/integration/test_hadoop_storage.py::test_a_whole_job_on_it",),
    "execution.checkpointing.storage": (f"{_SETTINGS}test_storage_in_memory",),
    "execution.checkpointing.savepoint-dir": (f"{_SETTINGS}test_a_flink_file_as_it_is",),
    "execution.checkpointing.checkpoints-after-tasks-finish": (
        "tests/integration/test_final_checkpoint.py::test_without_a_final_checkpoint_the_end_is_neither_committed_nor_lost",
    ),
    "execution.checkpointing.storage-is-shared": (
        "tests/unit/job/test_shared_storage.py::test_a_path_of_one_machine_is_refused_where_tasks_run_on_others",
    ),
    "penstock.latency": ("tests/integration/test_real_time.py::test_micro_batches_then_real_time_then_micro_batches",),
    "penstock.inflight.max-size": (f"{_UNALIGNED}test_the_log_is_limited",),
    "penstock.commit-timeout": ("tests/integration/test_bad_input.py::test_a_broker_that_dies_on_the_way",),
    "penstock.abort-timeout": (f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still",),
    "penstock.ledger.retained": (f"{_LEDGER}test_old_manifests_are_pruned_now_and_then",),
    "penstock.ledger.trusted-schemes": (f"{_LEDGER}test_storage_that_nobody_answers_for_is_refused",),
    "state.backend.type": (
        f"{_BACKENDS}test_each_backend_keeps_state",
        f"{_BACKENDS}test_the_other_backend_is_refused",
    ),
    "state.changelog.enabled": (f"{_BACKENDS}test_each_backend_keeps_state",),
    "state.backend.rocksdb.memory.managed": (f"{_BACKENDS}test_each_backend_keeps_state",),
    "state.backend.rocksdb.memory.fixed-per-slot": (f"{_BACKENDS}test_each_backend_keeps_state",),
    "state.backend.rocksdb.memory.write-buffer-ratio": (f"{_SETTINGS}test_settings_of_rocksdb",),
    "state.backend.rocksdb.memory.high-prio-pool-ratio": (f"{_SETTINGS}test_settings_of_rocksdb",),
    "parallelism.default": (f"{_BACKENDS}test_parallelism_is_the_number_of_state_partitions",),
    "restart-strategy.type": (f"{_RESTART}test_none", f"{_RESTART}test_what_no_retry_can_cure_is_not_retried"),
    "restart-strategy.fixed-delay.attempts": (f"{_RESTART}test_fixed_delay",),
    "restart-strategy.fixed-delay.delay": (f"{_RESTART}test_fixed_delay",),
    "restart-strategy.failure-rate.max-failures-per-interval": (f"{_RESTART}test_failure_rate",),
    "restart-strategy.failure-rate.failure-rate-interval": (f"{_RESTART}test_failure_rate",),
    "restart-strategy.failure-rate.delay": (f"{_RESTART}test_failure_rate",),
    "restart-strategy.exponential-delay.initial-backoff": (f"{_RESTART}test_exponential_delay",),
    "restart-strategy.exponential-delay.max-backoff": (f"{_RESTART}test_exponential_delay",),
    "restart-strategy.exponential-delay.backoff-multiplier": (f"{_RESTART}test_exponential_delay",),
    "restart-strategy.exponential-delay.reset-backoff-threshold": (
        f"{_RESTART}test_a_run_that_lasted_starts_the_count_over",
    ),
    "restart-strategy.exponential-delay.jitter-factor": (f"{_RESTART}test_jitter",),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": (f"{_RESTART}test_exponential_delay_gives_up",),
    "penstock.restart.immediate-after": (f"{_RESTART}test_after_a_run_that_lasted_the_first_restart_comes_at_once",),
    "execution.state-recovery.path": (f"{_RECOVERY}test_what_run_hands_over",),
    "execution.state-recovery.ignore-unclaimed-state": (f"{_RECOVERY}test_what_run_hands_over",),
    "execution.state-recovery.claim-mode": (f"{_RECOVERY}test_claim_modes",),
    "penstock.restore.id": (f"{_RECOVERY}test_what_run_hands_over",),
    "penstock.fork.name": (f"{_RECOVERY}test_a_fork_is_whole",),
    "penstock.fork.suffix": (f"{_RECOVERY}test_a_fork_is_whole",),
    "high-availability.standby": ("tests/unit/ops/process/test_standby_keeper.py::test_a_standby_takes_over",),
    "high-availability.lease": (
        "tests/unit/ops/process/test_lease.py::test_who_waits_takes_over_when_the_lease_has_run_out",
    ),
    "rest.bind-address": (f"{_SERVER}test_beyond_this_machine_every_request_needs_the_token",),
    "rest.address": (f"{_SERVER}test_the_address_others_are_told",),
    "rest.port": (f"{_SERVER}test_a_port_that_is_taken_stops_no_job",),
    "penstock.control.enabled": (f"{_SERVER}test_a_job_may_be_out_of_reach",),
    "penstock.control.hosts": (f"{_SERVER}test_it_answers_only_to_its_own_names",),
    "penstock.control.open-reads": (f"{_SERVER}test_reading_may_be_open_but_never_shows_an_error",),
    "security.ssl.rest.certificate": (f"{_ACCESS}test_by_tls_where_there_is_a_certificate",),
    "security.ssl.rest.key": (f"{_ACCESS}test_by_tls_where_there_is_a_certificate",),
    "penstock.log.format": ("tests/unit/test_logs.py::test_the_setting_is_read_from_every_place",),
}

_HEAD = "| Flink's key | in Python | default | meaning here | shown by |\n|---|---|---|---|---|"


def table() -> str:
    """One row an option, in Markdown."""
    return "\n".join([_HEAD, *(_row(option) for option in OPTIONS)])


def insert_table(page: str) -> str:
    """The page with the table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(option: Option) -> str:
    keys = f"`{option.key}`" + "".join(f"<br>also `{alias}`" for alias in option.aliases)
    tests = "<br>".join(f"`{test}`" for test in SHOWN_BY[option.key])
    default = f"`{option.default}`" if option.default else "none"
    return f"| {keys} | `{option.python}` | {default} | {option.meaning} | {tests} |"


def main(arguments: list[str]) -> None:
    """With a page's path: put the table there. Without: print it."""
    for name in arguments:
        page = Path(name)
        page.write_text(insert_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    if not arguments:
        sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
