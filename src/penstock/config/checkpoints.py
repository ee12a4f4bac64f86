"""`Checkpoints`: how often epochs are cut, what they promise, where they are kept; and the options that say so."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, Self

from penstock.config.option import boolean, one_of, option, plain, schemes, size, size_text, whole
from penstock.deadline import duration_text, seconds
from penstock.errors import ConfigurationError


class Mode(StrEnum):
    """What a job asks of the whole chain."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Retention(StrEnum):
    """What becomes of the checkpoints when a job is cancelled. A job that fails always keeps them."""

    RETAIN = "retain_on_cancellation"
    DELETE = "delete_on_cancellation"


@dataclass(frozen=True)
class Checkpoints:
    """How often epochs are cut, what they promise, and where checkpoints and the ledger live.

    `interval` 0 starts each epoch as soon as the one before is complete. `storage` is a folder: a path, a `file:` URI
    or any Hadoop file system URI; `memory:` is a temporary folder, in memory where the machine has such, that is gone
    with the process. `mode`: see `Mode`. `timeout`: an epoch that is not prepared after this is aborted, and a failed
    checkpoint. `min_pause`: at least this long from the end of one epoch to the work of the next. `max_concurrent`: how
    many epochs may be under way; above 1, the next is prepared while the one before commits. `tolerable_failures`:
    how many checkpoints in a row may fail before the job does. `unaligned`: the checkpoint does not wait for a slow
    sink, its rows go into the in-flight log; `aligned_timeout`: only once the sink has been waited for this long.
    `inflight_limit`: bytes in that log beyond which the job slows down. `retention`: what `cancel` does with the
    checkpoints; `num_retained`: how many complete ones are kept. `final_checkpoint`: whether bounded inputs end with a
    committed epoch. `commit_timeout` is how long a decided epoch's commits are tried and proven before the query
    restarts, `abort_timeout` how long aborting may take. `retained` is how many decided epochs the ledger keeps for
    looking back. `savepoint_dir` is where savepoints go for which no folder is named. `trusted_schemes`: storage that
    is used on your word that of two creates of one name only one succeeds. `storage_is_shared`: your word that a path
    of this machine is the same folder on all workers of a cluster. `latency`: above 0, queries of `job.write` that name
    none run in real time, and their rows become visible about this often; `interval`, 10 seconds unless given, is then
    how often positions are recorded.

    What is given here wins over a configuration file; what is not given may be set there, and `-D` wins over both.
    """

    interval: float | str = 0.0
    storage: str = "penstock-checkpoints"
    mode: Mode | str = Mode.EXACTLY_ONCE
    timeout: float | str = "10min"
    min_pause: float | str = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    unaligned: bool = False
    aligned_timeout: float | str = 0.0
    inflight_limit: int | str = "1gb"
    retention: Retention | str = Retention.RETAIN
    num_retained: int = 1
    final_checkpoint: bool = True
    commit_timeout: float | str = "60s"
    abort_timeout: float | str = "30s"
    retained: int = 100
    savepoint_dir: str | None = None
    trusted_schemes: Sequence[str] = ()
    storage_is_shared: bool = False
    latency: float | str = 0.0
    interval_seconds: float = field(init=False, repr=False, default=0.0)
    timeout_seconds: float = field(init=False, repr=False, default=0.0)
    min_pause_seconds: float = field(init=False, repr=False, default=0.0)
    aligned_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    commit_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    abort_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    latency_seconds: float = field(init=False, repr=False, default=0.0)
    inflight_bytes: int = field(init=False, repr=False, default=0)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Remembers which arguments were written down: only those win over a file."""
        instance = super().__new__(cls)
        object.__setattr__(instance, "_given", (*_NAMES[: len(values)], *named))
        return instance

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            object.__setattr__(self, f"{name}_seconds", seconds(getattr(self, name), name))
        object.__setattr__(self, "inflight_bytes", size(self.inflight_limit, "inflight_limit"))
        object.__setattr__(self, "mode", one_of(Mode, self.mode, "mode"))
        object.__setattr__(self, "retention", one_of(Retention, self.retention, "retention"))
        object.__setattr__(self, "trusted_schemes", schemes(self.trusted_schemes, "trusted_schemes"))
        if self.timeout_seconds == 0 or self.commit_timeout_seconds == 0:
            raise ConfigurationError(
                "A checkpoint timeout of 0 leaves no time for any epoch.",
                to_do="give timeout and commit_timeout a positive duration.",
            )
        if self.retained < 2:
            raise ConfigurationError(
                f"retained={self.retained}, but the ledger needs the last two decisions to recover.",
                to_do="keep at least 2.",
            )
        if self.max_concurrent < 1 or self.num_retained < 1 or self.tolerable_failures < 0:
            raise ConfigurationError(
                f"max_concurrent={self.max_concurrent}, num_retained={self.num_retained} and"
                f" tolerable_failures={self.tolerable_failures} are not all in range.",
                to_do="give max_concurrent and num_retained at least 1, tolerable_failures at least 0.",
            )
        if (contradiction := find_contradiction(vars(self))) is not None:
            first, second, because = contradiction
            raise contradiction_error(f"{first}={getattr(self, first)}", f"{second}={getattr(self, second)}", because)

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments that were written down, defaults left out."""
        return tuple(self.__dict__["_given"])

    def but(self, **changes: Any) -> Checkpoints:
        """Unlike `dataclasses.replace`, what was not given stays so."""
        return Checkpoints(**{**{name: getattr(self, name) for name in self.given}, **changes})

    @property
    def logged(self) -> bool:
        """Whether epochs need the in-flight log."""
        return self.unaligned or self.max_concurrent > 1


_DURATIONS = ("interval", "timeout", "min_pause", "aligned_timeout", "commit_timeout", "abort_timeout", "latency")
_NAMES = tuple(argument.name for argument in fields(Checkpoints) if argument.init)


def find_contradiction(values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Two names out of these values that contradict each other, and why."""
    exactly_once = values["mode"] == Mode.EXACTLY_ONCE
    if values["unaligned"] and not exactly_once:
        return "unaligned", "mode", "unaligned checkpoints exist for exactly_once"
    if values["unaligned"] and values["max_concurrent"] > 1:
        return "unaligned", "max_concurrent", "an unaligned epoch never waits for the one before"
    if values["max_concurrent"] > 1 and not exactly_once:
        return "max_concurrent", "mode", "only exactly_once has a commit to wait for"
    if seconds(values["min_pause"], "min_pause") > 0 and values["max_concurrent"] > 1:
        return "min_pause", "max_concurrent", "a pause allows one at a time"
    return None


def contradiction_error(first: str, second: str, because: str) -> ConfigurationError:
    return ConfigurationError(f"{first} contradicts {second}: {because}.", to_do="change one of the two.")


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
        to_do="write filesystem, and the folder as execution.checkpointing.dir.",
    )


_C = "execution.checkpointing"
_option = partial(option, "checkpoints", "Checkpoints({name}=…)")

CHECKPOINT_OPTIONS = (
    _option(f"{_C}.interval", "interval", "0 ms", duration_text,
        "How often an epoch is cut. With 0 the next epoch is cut as soon as the previous one is complete; Flink takes"
        " no checkpoints then."),
    _option(f"{_C}.mode", "mode", "exactly_once", partial(one_of, Mode),
        "`exactly_once`, `at_least_once`, or `at_most_once`, which Flink does not have."),
    _option(f"{_C}.timeout", "timeout", "10 min", duration_text,
        "An epoch that is not prepared within this time is aborted at the sinks and counts as a failed checkpoint. The"
        " time starts when Spark hands the epoch over; what Spark computes earlier, such as the small side of a"
        " broadcast join or whole stages with adaptive execution, does not count."),
    _option(f"{_C}.min-pause", "min_pause", "0 ms", duration_text,
        "The shortest pause between the end of one epoch and the work of the next. Implies one epoch at a time."),
    _option(f"{_C}.max-concurrent-checkpoints", "max_concurrent", "1", whole,
        "How many epochs may be in progress. Above 1, an epoch is prepared while the previous one commits."),
    _option(f"{_C}.tolerable-failed-checkpoints", "tolerable_failures", "0", whole,
        "How many checkpoints in a row may fail before the job does."),
    _option(f"{_C}.unaligned.enabled", "unaligned", "false", boolean,
        "A checkpoint does not wait for a slow sink: its rows go into the in-flight log and are delivered later, in"
        " order. Needs `exactly_once` and one epoch at a time.", aliases=(f"{_C}.unaligned",)),
    _option(f"{_C}.aligned-checkpoint-timeout", "aligned_timeout", "0 ms", duration_text,
        "For unaligned checkpoints. Above 0, an epoch waits this long for the sink before its rows go into the log.",
        aliases=(f"{_C}.alignment-timeout",)),
    _option(f"{_C}.externalized-checkpoint-retention", "retention", "retain_on_cancellation", _retention,
        "What `cancel` does with the checkpoints: `retain_on_cancellation` or `delete_on_cancellation`. Flink's default"
        " `no_externalized_checkpoints` means the latter. A failed job always keeps them."),
    _option(f"{_C}.num-retained", "num_retained", "1", whole,
        "How many complete checkpoints are kept.", aliases=("state.checkpoints.num-retained",)),
    _option(f"{_C}.dir", "storage", "penstock-checkpoints", plain,
        "The folder of checkpoints and ledger: a path, a `file:` URI or any Hadoop URI. Each job has a folder of its"
        " name in it.",
        aliases=("state.checkpoints.dir", "state.backend.fs.checkpointdir")),
    option("checkpoints", 'Checkpoints(storage="memory:")', f"{_C}.storage", "storage_kind", "filesystem", _storage,
        "`jobmanager` keeps checkpoints in memory, if the machine has a folder for that; they are lost when the process"
        " ends. `filesystem` uses the folder above.",
        aliases=("state.checkpoint-storage",)),
    _option(f"{_C}.savepoint-dir", "savepoint_dir", "", plain,
        "The default folder for savepoints. Unset: `_savepoints` in the checkpoint folder.",
        aliases=("state.savepoints.dir",)),
    _option(f"{_C}.checkpoints-after-tasks-finish", "final_checkpoint", "true", boolean,
        "Whether the end of a bounded input commits a last epoch. Otherwise its rows wait for the next start.",
        aliases=(f"{_C}.checkpoints-after-tasks-finish.enabled",)),
    _option(f"{_C}.storage-is-shared", "storage_is_shared", "false", boolean,
        "Confirms that a path on the driver's machine is the same mounted folder on all workers. Otherwise such a path"
        " is refused if tasks run on other machines."),
    _option("penstock.latency", "latency", "0 ms", duration_text,
        "Above 0, queries of `job.write` that name no `latency` run in real time: their rows become visible about this"
        " often, and `execution.checkpointing.interval` (10 s unless set) is how often positions are recorded. See"
        " [Real time](../how-to/real-time.md)."),
    _option("penstock.inflight.max-size", "inflight_limit", "1 gb", size_text,
        "The size of the in-flight log above which the job slows down instead of filling the disk."),
    _option("penstock.commit-timeout", "commit_timeout", "60 s", duration_text,
        "The deadline for sealing an epoch, and again for committing it. Choose more than a broker restart takes and"
        " less than the transaction timeout."),
    _option("penstock.abort-timeout", "abort_timeout", "30 s", duration_text,
        "The deadline for aborting an epoch at the sinks."),
    _option("penstock.ledger.retained", "retained", "100", whole,
        "The minimum number of decided epochs that the ledger keeps; at least 2. Recovery needs only the newest."),
    _option("penstock.ledger.trusted-schemes", "trusted_schemes", "", schemes,
        "Comma-separated schemes, besides local disks, `hdfs`, `s3a` and `s3`, that may hold the ledger. You confirm"
        " that a rename there is atomic and never overwrites; every start still tests it with racing creates. Also the"
        " type of a mount (`nfs4`, …) that caches listings, if all drivers of the job always run on one machine."),
)  # fmt: skip


def is_in_memory(checkpoints: Checkpoints) -> bool:
    """Whether the checkpoints are gone when the job ends, see `give_memory_a_folder`."""
    return checkpoints.storage.rpartition("/")[2].startswith(("memory:", "penstock-memory-"))


def give_memory_a_folder(checkpoints: Checkpoints) -> Checkpoints:
    """`memory:` as the temporary folder it means; Spark's own checkpoint needs a folder too."""
    if not checkpoints.storage.startswith("memory:"):
        return checkpoints
    shared_memory = "/dev/shm"  # noqa: S108 - a file system, not a file; where Linux keeps files in memory
    parent = shared_memory if os.access(shared_memory, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="penstock-memory-", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return checkpoints.but(storage=folder)
