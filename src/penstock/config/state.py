"""`StateBackend`: where a query keeps its state between epochs; its options, and that of parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from penstock.config.option import boolean, one_of, option, ratio, size, size_text, whole
from penstock.errors import ConfigurationError

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
CHANGELOG = f"{_ROCKSDB}.changelogCheckpointing.enabled"
BOUNDED = f"{_ROCKSDB}.boundedMemoryUsage"
LIMIT = f"{_ROCKSDB}.maxMemoryUsageMB"
WRITE_BUFFERS = f"{_ROCKSDB}.writeBufferCacheRatio"
HIGH_PRIORITY = f"{_ROCKSDB}.highPriorityPoolRatio"

_KEYS = {
    CHANGELOG: "changelog",
    BOUNDED: "managed_memory",
    WRITE_BUFFERS: "write_buffer_ratio",
    HIGH_PRIORITY: "high_priority_ratio",
}
_STATE = "org.apache.spark.sql.execution.streaming.state"
_MB = 1 << 20


class Backend(StrEnum):
    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


PROVIDERS = {
    Backend.HASHMAP: f"{_STATE}.HDFSBackedStateStoreProvider",
    Backend.ROCKSDB: f"{_STATE}.RocksDBStateStoreProvider",
}


@dataclass(frozen=True)
class StateBackend:
    """Use the class methods `hashmap()` and `rocksdb(...)`. None is a value that was not given."""

    kind: Backend
    changelog: bool | None = None
    managed_memory: bool | None = None
    memory_limit: int | str | None = None
    write_buffer_ratio: float | None = None
    high_priority_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.memory_limit is not None and size(self.memory_limit, "memory_limit") < _MB:
            happened = f"memory_limit={self.memory_limit} is less than a megabyte."
            raise ConfigurationError(happened, to_do="give RocksDB at least 1mb, better some hundred.")
        for name in ("write_buffer_ratio", "high_priority_ratio"):
            if getattr(self, name) is not None:
                ratio(getattr(self, name), name)

    @classmethod
    def hashmap(cls) -> StateBackend:
        """State in the executors' memory; each epoch writes what changed, a full copy now and then."""
        return cls(Backend.HASHMAP)

    @classmethod
    def rocksdb(
        cls,
        *,
        changelog: bool | None = None,
        managed_memory: bool | None = None,
        memory_limit: int | str | None = None,
        write_buffer_ratio: float | None = None,
        high_priority_ratio: float | None = None,
    ) -> StateBackend:
        """State in RocksDB on the executors' disks, for state larger than memory.

        `changelog`: each epoch writes the changes, not RocksDB's files; shorter epochs, longer recovery.
        `managed_memory` (the default): all RocksDBs of an executor share one bounded memory, `memory_limit` large (500
        MB, Spark's default, if not given); `write_buffer_ratio` of it for writes, `high_priority_ratio` for indexes.
        """
        return cls(Backend.ROCKSDB, changelog, managed_memory, memory_limit, write_buffer_ratio, high_priority_ratio)

    @property
    def given(self) -> dict[str, Any]:
        """What was written down, by the names of the arguments."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def conf(self) -> dict[str, tuple[str, str]]:
        """Spark's settings: each with its value and the name of the argument it comes from."""
        settings = {PROVIDER: (PROVIDERS[self.kind], "kind")}
        if self.kind is Backend.HASHMAP:
            return settings
        settings |= {key: (str(self.given[name]).lower(), name) for key, name in _KEYS.items() if name in self.given}
        if self.memory_limit is not None:  # a limit wins over managed memory, as in Flink
            settings[BOUNDED] = ("true", "memory_limit")
            settings[LIMIT] = (str(size(self.memory_limit, "memory_limit") // _MB), "memory_limit")
        return settings


def backend_of(conf: Mapping[str, Any]) -> str:
    """The backend that Spark's settings name: `hashmap`, which is Spark's default, `rocksdb`, or a foreign class."""
    provider = str(conf.get(PROVIDER) or PROVIDERS[Backend.HASHMAP])
    return next((kind.value for kind, name in PROVIDERS.items() if name == provider), provider)


def check_backend(recorded: Mapping[str, Any], session: Mapping[str, Any], *, query: str) -> None:
    """Refuse a checkpoint that another backend has written. `recorded` is the `conf` of a barrier's metadata, `session`
    holds the session's settings. Spark would go on with the recorded backend and not say so."""
    was, now = backend_of(recorded), backend_of(session)
    if was != now:
        raise ConfigurationError(
            f"The checkpoint of query {query!r} was written with the state backend {was}, the job now asks for {now}.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do=f"set state.backend.type to {was}; or switch by restoring from this checkpoint or a savepoint:"
            f" penstock run -s STORAGE/JOB -D state.backend.type={now} JOB.py.",
        )


def _backend(text: str, name: str) -> Backend:
    """Flink's older `filesystem` and `jobmanager` kept state on the heap."""
    if text.strip().lower() in ("filesystem", "jobmanager"):
        return Backend.HASHMAP
    return one_of(Backend, text, name)


def _partitions(text: str, name: str) -> int:
    count = whole(text, name)
    if count < 1:
        raise ConfigurationError(f"{name}={text} is not a number of partitions.", to_do="give at least 1.")
    return count


_MEMORY = "state.backend.rocksdb.memory"
_option = partial(option, "state", "StateBackend.rocksdb({name}=…)")

STATE_OPTIONS = (
    option("state", "StateBackend.…()", "state.backend.type", "kind", "hashmap", _backend,
        "`hashmap`: in the executors' memory, Spark's HDFSBackedStateStoreProvider. `rocksdb`: on their disks. A"
        " checkpoint of the other backend is refused.",
        aliases=("state.backend",)),
    _option("state.changelog.enabled", "changelog", "false", boolean,
        "RocksDB: an epoch writes its changes instead of RocksDB's files, as hashmap always does.",
        aliases=("state.backend.changelog.enabled",)),
    _option(f"{_MEMORY}.managed", "managed_memory", "true", boolean,
        "All RocksDBs of an executor share one bounded memory, Spark's 500 MB unless the next setting says otherwise."
        " `false`: each has its own, without a bound."),
    _option(f"{_MEMORY}.fixed-per-slot", "memory_limit", "", size_text,
        "The size of that memory, for a whole executor (all of Flink's slots together)."),
    _option(f"{_MEMORY}.write-buffer-ratio", "write_buffer_ratio", "0.5", ratio,
        "The share of that memory for write buffers."),
    _option(f"{_MEMORY}.high-prio-pool-ratio", "high_priority_ratio", "0.1", ratio,
        "The share of that memory for indexes and filters."),
    option("spark", 'Job(conf={{"{name}": …}})', "parallelism.default", PARTITIONS, "", _partitions,
        "Partitions of a shuffle, and so of state. Default: the cores of a local master, Spark's 200 on a cluster;"
        " Flink has 1. A checkpoint keeps the number it began with."),
)  # fmt: skip
