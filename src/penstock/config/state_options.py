"""The options of state backends, and of parallelism, which decides into how many parts state is cut."""

from __future__ import annotations

from penstock.config.option import Option, Parser
from penstock.config.state import Backend
from penstock.config.values import boolean, one_of, ratio, size_text, whole
from penstock.errors import ConfigurationError

_BACKENDS = "tests/integration/test_state_backends.py::"
_UNIT = "tests/unit/config/test_settings.py::"


def _backend(text: str, name: str) -> Backend:
    """Flink's older `filesystem` and `jobmanager` kept state on the heap."""
    if text.strip().lower() in ("filesystem", "jobmanager"):
        return Backend.HASHMAP
    return one_of(Backend, text, name)


def _partitions(text: str, name: str) -> int:
    count = whole(text, name)
    if count < 1:
        raise ConfigurationError(
            f"{name}={text} is not a number of partitions.", safe="nothing was started.", to_do="give at least 1."
        )
    return count


def _option(
    key: str, name: str, default: str, parse: Parser, meaning: str, *shown_by: str, aliases: tuple[str, ...] = ()
) -> Option:
    python = "StateBackend.…()" if name == "kind" else f"StateBackend.rocksdb({name}=…)"
    return Option(key, "state", name, python, default, parse, meaning, shown_by, aliases)


_MEMORY = "state.backend.rocksdb.memory"

STATE_OPTIONS = (
    _option(
        "state.backend.type", "kind", "hashmap", _backend,
        "`hashmap`: in the executors' memory, Spark's HDFSBackedStateStoreProvider. `rocksdb`: on their disks. A"
        " checkpoint of the other backend is refused.",
        f"{_BACKENDS}test_each_backend_keeps_state", f"{_BACKENDS}test_the_other_backend_is_refused",
        aliases=("state.backend",),
    ),
    _option(
        "state.changelog.enabled", "changelog", "false", boolean,
        "RocksDB: an epoch writes the changes instead of RocksDB's files. hashmap always does; the setting is accepted"
        " and changes nothing.",
        f"{_BACKENDS}test_each_backend_keeps_state", aliases=("state.backend.changelog.enabled",),
    ),
    _option(
        "execution.checkpointing.incremental", "incremental", "true", boolean,
        "Both backends write only what is new since the epoch before: hashmap its changes, RocksDB the files it has not"
        " written yet. `false` is accepted and changes nothing.",
        f"{_UNIT}test_incremental_cannot_be_turned_off", aliases=("state.backend.incremental",),
    ),
    _option(
        f"{_MEMORY}.managed", "managed_memory", "true", boolean,
        "All RocksDBs of an executor share one bounded memory, Spark's 500 MB unless the next setting says otherwise."
        " `false`: each has its own, without a bound.",
        f"{_BACKENDS}test_each_backend_keeps_state",
    ),
    _option(
        f"{_MEMORY}.fixed-per-slot", "memory_limit", "", size_text,
        "The size of that memory. It is for a whole executor, which is Flink's slots together.",
        f"{_BACKENDS}test_each_backend_keeps_state",
    ),
    _option(
        f"{_MEMORY}.write-buffer-ratio", "write_buffer_ratio", "0.5", ratio,
        "The share of it that buffers writes.", f"{_UNIT}test_settings_of_rocksdb",
    ),
    _option(
        f"{_MEMORY}.high-prio-pool-ratio", "high_priority_ratio", "0.1", ratio,
        "The share of it that is kept for indexes and filters.", f"{_UNIT}test_settings_of_rocksdb",
    ),
    Option(
        "parallelism.default", "spark", "spark.sql.shuffle.partitions",
        'Job(conf={"spark.sql.shuffle.partitions": …})', "", _partitions,
        "Partitions of a shuffle, and so of state. Unless said: the cores of a local master, Spark's 200 on a cluster;"
        " Flink has 1. A checkpoint keeps the number it began with.",
        (f"{_BACKENDS}test_parallelism_is_the_number_of_state_partitions",),
    ),
)  # fmt: skip
