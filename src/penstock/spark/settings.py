"""The settings of a job in a running session: which are set, which give way, which are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.checkpoint.layout import STATE
from penstock.checkpoint.open import spark_log_at
from penstock.checkpoint.spark_log import STATE_FORMAT, SparkLog
from penstock.config.levels import CODE, OPTIONS, describe_setting
from penstock.config.resolve import Settings, SparkSetting
from penstock.config.state import PARTITIONS, PROVIDER, Backend, backend_of, check_backend
from penstock.errors import ConfigurationError
from penstock.storage.local import storage_at
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_APPLIED = "penstock.applied"  # in the session: what came from us, so that it is not taken for the user's word
_SESSION = "the Spark session"

_warned: set[str] = set()


def apply_settings(spark: SparkSession, asked: Mapping[str, SparkSetting]) -> None:
    """Set what a job's options ask for, and reset what an earlier job in this session asked for. A contradicting
    setting of the user's is an error that names both."""
    current = dict(spark.conf.getAll)
    # The value of each, and the one before.
    applied: dict[str, tuple[str, str | None]] = json.loads(current.get(_APPLIED, "{}"))
    wanted: dict[str, str | None] = {}  # None: as if never set
    for key, (value, former) in applied.items():
        if key not in asked and current.get(key) == value:
            wanted[key] = former
    for key, setting in asked.items():
        now = current.get(key)
        ours = key in applied and applied[key][0] == now
        if now is None or ours or setting.agrees(key, now, _SESSION):
            wanted[key] = setting.value
    # Only now, when nothing was refused, is anything changed.
    for key, new in wanted.items():
        now = current.get(key)
        if new == now:
            continue
        former = applied[key][1] if key in applied else now
        if new is None:
            spark.conf.unset(key)
            del applied[key]
        else:
            spark.conf.set(key, new)
            applied[key] = (new, former)
    if json.dumps(applied) != current.get(_APPLIED, "{}"):
        spark.conf.set(_APPLIED, json.dumps(applied))


def remember_defaults(spark: SparkSession, defaults: Mapping[str, str]) -> None:
    """Remember our defaults in a session just made: options may change them, and may not change the user's settings."""
    spark.conf.set(_APPLIED, json.dumps({key: [value, value] for key, value in defaults.items()}))


def apply_over_running(spark: SparkSession, settings: Settings) -> None:
    """Spark's settings from `-D` and the file, in a session that was there before: `-D` wins over the session, the
    file gives way, and what cannot be changed in a running session is logged."""
    current = dict(spark.conf.getAll)
    for key, value in {**settings.spark_file, **settings.spark}.items():
        where = settings.spark_origin[key]
        now = current.get(key)
        if where == CODE or now == value:
            continue
        if where != OPTIONS and now is not None:
            _warn_once(f"{describe_setting(key, value, where)} gives way to {describe_setting(key, now, _SESSION)}.")
        elif spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        else:
            _warn_once(f"{describe_setting(key, value, where)} comes too late: the Spark session runs already.")


def warn_overridden(key: str, value: str, now: str) -> None:
    file, submit = describe_setting(key, value, "the configuration file"), describe_setting(key, now, "spark-submit")
    _warn_once(f"{file} gives way to {submit}.")


def require_same_state(spark: SparkSession, spark_log: SparkLog, query: str, operators: Callable[[], object]) -> None:
    """Refuse to resume state of the other backend or format, and hashmap in format 2; a query that keeps none goes on
    with any. `operators` are those of the plan, empty where it keeps none."""
    session, barrier = {PROVIDER: spark.conf.get(PROVIDER, None)}, spark_log.newest_barrier()
    if barrier is not None and (spark_log.next_epoch()[0] == 0 or spark_log.stateful()):
        check_backend(barrier.metadata.get("conf", {}), session, query=query)
    state_format = require_same_format(spark, spark_log, query)
    if state_format != "1" and backend_of(session) == Backend.HASHMAP and operators():
        raise ConfigurationError(
            f"Query {query!r} keeps state in hashmap, and {STATE_FORMAT} is {state_format}: hashmap has format 1 only.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do="set state.backend.type to rocksdb, or that setting to 1.",
        )


def wanted_format(spark: SparkSession) -> str | None:
    """The format of state that the session's queries are to have; None: the one that each has. `ConfigurationError`
    where this Spark lacks it."""
    version = version_of(spark)
    asked = spark.conf.get(STATE_FORMAT, None) or (None if version.state_format == "log" else "1")
    if asked == "2" and version.state_format is None:
        raise ConfigurationError(
            f"{STATE_FORMAT} is 2, and state in format 2 is not complete in Spark {version.name}.",
            to_do="set it to 1; or upgrade PySpark to 4.1 or newer.",
        )
    return asked


def require_same_format(spark: SparkSession, spark_log: SparkLog, query: str) -> str:
    """Refuse to resume state of the other format, of which Spark would fail in every epoch. The format it has."""
    asked, was = wanted_format(spark), spark_log.newest_format()
    decides = version_of(spark).state_format
    if was is None or asked == was or decides == "log":
        return was or asked or "1"
    if decides == "strict" or spark_log.stateful():
        raise ConfigurationError(
            f"The state of query {query!r} is in format {was}, but {STATE_FORMAT} is {asked}.",
            safe="nothing was started; the checkpoint is as it was.",
            to_do=f"set it to {was}; or move the state by restoring from this checkpoint or a savepoint:"
            f" penstock run -s STORAGE/JOB -D {STATE_FORMAT}={asked} JOB.py.",
        )
    return str(asked)


def require_same_parallelism(
    spark: SparkSession, location: str, history: str, queries: Iterable[str], settings: Settings
) -> None:
    """Refuse another parallelism: Spark would silently keep the number of state partitions it began with."""
    wanted = settings.derived_spark.get(PARTITIONS)
    if wanted is None or wanted.side is None:
        return
    for uid in queries:
        where = f"{location}/{uid}/{history}"
        barrier = spark_log_at(where, spark).newest_barrier()
        if barrier is None or not storage_at(where, spark).list(STATE):
            continue
        recorded = str(barrier.metadata.get("conf", {}).get(PARTITIONS, wanted.value))
        if recorded != wanted.value:
            raise ConfigurationError(
                f"The state of query {uid!r} has {recorded} partitions, but {wanted.side} asks for {wanted.value}.",
                safe="nothing was started; the checkpoint is as it was.",
                to_do=f"rescale by restoring: penstock run -s {location} -p {wanted.value} JOB.py, from this checkpoint"
                " or a savepoint; or leave the parallelism as it was.",
            )


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)
