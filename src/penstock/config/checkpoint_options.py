"""The options of checkpoints."""

from __future__ import annotations

from penstock.config.checkpoints import Mode, Retention
from penstock.config.option import Option, Parser
from penstock.config.values import boolean, one_of, plain, schemes, size_text, whole
from penstock.durations import duration_text
from penstock.errors import ConfigurationError

_MODES = "tests/faults/test_modes.py::"
_UNALIGNED = "tests/faults/test_unaligned.py::"
_LIMITS = "tests/faults/test_checkpoint_limits.py::"
_RETENTION = "tests/integration/test_retention.py::"
_FINAL = "tests/integration/test_final_checkpoint.py::"
_SETTINGS = "tests/unit/config/test_settings.py::"


def _mode(text: str, name: str) -> Mode:
    return one_of(Mode, text, name)


def _retention(text: str, name: str) -> Retention:
    """Flink's default, no externalized checkpoints, deletes on cancellation; here a failure never does."""
    if text.strip().lower().replace("-", "_") == "no_externalized_checkpoints":
        return Retention.DELETE
    return one_of(Retention, text, name)


def _storage(text: str, name: str) -> str:
    word = text.strip().lower()
    if word in ("jobmanager", "filesystem"):
        return word
    raise ConfigurationError(
        f"{name}={text!r} is neither jobmanager nor filesystem.",
        safe="nothing was started.",
        to_do="write filesystem, and the folder as execution.checkpointing.dir.",
    )


def _option(
    key: str,
    name: str,
    default: str,
    parse: Parser,
    meaning: str,
    *shown_by: str,
    aliases: tuple[str, ...] = (),
    python: str | None = None,
) -> Option:
    return Option(
        key, "checkpoints", name, python or f"Checkpoints({name}=…)", default, parse, meaning, shown_by, aliases
    )


_C = "execution.checkpointing"

CHECKPOINT_OPTIONS = (
    _option(
        f"{_C}.interval", "interval", "0 ms", duration_text,
        "How often an epoch is cut. 0 cuts the next as soon as the one before is complete; Flink makes no checkpoints"
        " then, here there is always one.",
        "tests/integration/test_settings_in_spark.py::test_an_interval_is_spark_s_trigger",
    ),
    _option(
        f"{_C}.mode", "mode", "exactly_once", _mode,
        "`exactly_once`, `at_least_once`, or `at_most_once`, which Flink has no word for.",
        f"{_MODES}test_exactly_once_neither_loses_nor_doubles", f"{_MODES}test_at_least_once_doubles_and_never_loses",
        f"{_MODES}test_at_most_once_loses_and_never_doubles",
    ),
    _option(
        f"{_C}.timeout", "timeout", "10 min", duration_text,
        "An epoch that is not prepared after this is aborted at the sinks and is a failed checkpoint.",
        f"{_LIMITS}test_a_checkpoint_that_takes_too_long_is_aborted_and_tried_again",
    ),
    _option(
        f"{_C}.min-pause", "min_pause", "0 ms", duration_text,
        "At least this long from the end of one epoch to the work of the next. Allows one epoch at a time.",
        f"{_LIMITS}test_a_pause_lies_between_two_checkpoints",
    ),
    _option(
        f"{_C}.max-concurrent-checkpoints", "max_concurrent", "1", whole,
        "How many epochs may be under way. Above 1, the next is prepared while the one before commits.",
        f"{_LIMITS}test_the_next_epoch_is_prepared_while_one_commits",
    ),
    _option(
        f"{_C}.tolerable-failed-checkpoints", "tolerable_failures", "0", whole,
        "How many checkpoints in a row may fail before the job does.",
        f"{_LIMITS}test_more_failures_than_tolerated_fail_the_job",
    ),
    _option(
        f"{_C}.unaligned.enabled", "unaligned", "false", boolean,
        "A checkpoint does not wait for a slow sink: its rows go into the in-flight log and are delivered later, in"
        " order. Needs `exactly_once` and one epoch at a time.",
        f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still", aliases=(f"{_C}.unaligned",),
    ),
    _option(
        f"{_C}.aligned-checkpoint-timeout", "aligned_timeout", "0 ms", duration_text,
        "With unaligned on: above 0, an epoch waits for the sink this long before it goes into the log.",
        f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still", aliases=(f"{_C}.alignment-timeout",),
    ),
    _option(
        f"{_C}.externalized-checkpoint-retention", "retention", "retain_on_cancellation", _retention,
        "What `cancel` does with the checkpoints: `retain_on_cancellation` or `delete_on_cancellation`. Flink's default"
        " `no_externalized_checkpoints` is taken as the latter. A job that fails always keeps them.",
        f"{_RETENTION}test_delete_on_cancellation", f"{_RETENTION}test_retain_on_cancellation",
    ),
    _option(
        f"{_C}.num-retained", "num_retained", "1", whole,
        "How many complete checkpoints are kept.",
        f"{_RETENTION}test_num_retained", aliases=("state.checkpoints.num-retained",),
    ),
    _option(
        f"{_C}.dir", "storage", "penstock-checkpoints", plain,
        "The folder of checkpoints and ledger: a path, a `file:` URI or any Hadoop URI. Each job has a folder of its"
        " name in it.",
        "tests/integration/test_hadoop_storage.py::test_a_whole_job_on_it",
        aliases=("state.checkpoints.dir", "state.backend.fs.checkpointdir"),
    ),
    _option(
        f"{_C}.storage", "storage_kind", "filesystem", _storage,
        "`jobmanager` keeps checkpoints in memory where the machine has such a folder: they are gone with the process."
        " `filesystem` is the folder above.",
        f"{_SETTINGS}test_storage_in_memory",
        aliases=("state.checkpoint-storage",), python='Checkpoints(storage="memory:")',
    ),
    _option(
        f"{_C}.savepoint-dir", "savepoint_dir", "", plain,
        "Where savepoints go unless a folder is named.",
        f"{_SETTINGS}test_a_flink_file_as_it_is", aliases=("state.savepoints.dir",),
    ),
    _option(
        f"{_C}.checkpoints-after-tasks-finish", "final_checkpoint", "true", boolean,
        "Whether bounded inputs end with a committed epoch. Otherwise the last rows wait for the next start.",
        f"{_FINAL}test_without_a_final_checkpoint_the_end_is_neither_committed_nor_lost",
        aliases=(f"{_C}.checkpoints-after-tasks-finish.enabled",),
    ),
    _option(
        "penstock.inflight.max-size", "inflight_limit", "1 gb", size_text,
        "Bytes in the in-flight log beyond which the job slows down instead of filling the disk.",
        f"{_UNALIGNED}test_the_log_is_limited",
    ),
    _option(
        "penstock.commit-timeout", "commit_timeout", "60 s", duration_text,
        "One deadline for sealing, and one for committing, an epoch. Longer than a broker's restart, shorter than a"
        " transaction's timeout.",
        "tests/integration/test_bad_input.py::test_a_broker_that_dies_on_the_way",
    ),
    _option(
        "penstock.abort-timeout", "abort_timeout", "30 s", duration_text,
        "How long aborting an epoch at the sinks may take.",
        f"{_UNALIGNED}test_checkpoints_complete_while_the_sink_stands_still",
    ),
    _option(
        "penstock.ledger.retained", "retained", "100", whole,
        "How many decided epochs the ledger keeps, at least; 2 or more. Only the newest are needed to recover.",
        "tests/unit/checkpoint/test_ledger.py::test_old_manifests_are_pruned_now_and_then",
    ),
    _option(
        "penstock.ledger.trusted-schemes", "trusted_schemes", "", schemes,
        "Storage beside local disks, `hdfs`, `s3a` and `s3` that may hold the ledger, on your word that its rename is"
        " one step and never overwrites: schemes with commas between. A race of creates is still tried at every start.",
        "tests/unit/checkpoint/test_ledger.py::test_storage_that_nobody_answers_for_is_refused",
    ),
)  # fmt: skip
