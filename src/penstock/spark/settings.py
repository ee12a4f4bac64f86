"""The settings of a job in a running session: which are set, which give way, which are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.checkpoint.layout import STATE
from penstock.checkpoint.open import spark_log_at
from penstock.config.levels import CODE, OPTIONS, describe_setting
from penstock.config.state import PARTITIONS, PROVIDER, check_backend
from penstock.errors import ConfigurationError
from penstock.storage.open import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.resolve import Settings, SparkSetting

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


def require_same_backend(spark: SparkSession, location: str, query: str) -> None:
    """Refuse to resume state of the other backend; a query that keeps none goes on with any. `location` is Spark's."""
    spark_log = spark_log_at(location, spark)
    epoch, pending = spark_log.next_epoch()
    barrier = spark_log.barrier(epoch if pending else epoch - 1)
    if barrier is None or (epoch > 0 and not storage_at(location, spark).list(STATE)):
        return
    session = {PROVIDER: spark.conf.get(PROVIDER, None)}
    check_backend(barrier.metadata.get("conf", {}), session, query=query)


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
