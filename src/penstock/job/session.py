"""The Spark session of a job: made when first needed, with what the job's settings ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.spark.executors import check_executors, importable
from penstock.spark.masters import refuse_connect, require_shared
from penstock.spark.session import ensure_jars, running_session, session
from penstock.spark.settings import apply_over_running, apply_settings
from penstock.storage.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config import Checkpoints
    from penstock.config.resolve import Settings
    from penstock.contracts.sink import TwoPhaseSink


class JobSession:
    """`spark`: the user's own session, which then counts."""

    def __init__(self, name: str, settings: Settings, checkpoints: Checkpoints, spark: SparkSession | None) -> None:
        self._name, self._settings, self._checkpoints, self._spark = name, settings, checkpoints, spark
        if spark is not None:
            refuse_connect(spark)
            apply_over_running(spark, settings)

    def get(self, conf: Mapping[str, str] | None = None, jars: Iterable[str] = ()) -> SparkSession:
        """The session, with these jars. `conf` counts only where it is made now."""
        jars = tuple(jars)
        if self._spark is None:
            running = running_session()
            self._spark = session(
                self._name,
                conf={**(conf or {}), **self._settings.spark},
                jars=jars,
                local_storage=local_path(self._checkpoints.storage) is not None,
                file=self._settings.spark_file,
            )
            if running is not None:
                apply_over_running(running, self._settings)
        # Each time: another job may have set something else meanwhile.
        apply_settings(self._spark, self._settings.derived_spark)
        ensure_jars(self._spark, jars)
        return self._spark

    def require_shared(self) -> None:
        """Raise where executors could not see the checkpoint storage."""
        require_shared(self._checkpoints.storage, self.get(), is_shared=self._checkpoints.storage_is_shared)

    def check(self, sinks: Iterable[TwoPhaseSink]) -> None:
        """Raise where the cluster cannot run the job: storage it does not share, executors that lack a module."""
        self.require_shared()
        check_executors(self.get(), __version__, importable(writer_modules(sinks)))


def writer_modules(sinks: Iterable[TwoPhaseSink]) -> list[str]:
    """The modules that a worker loads for these sinks: each sink's own and, by convention, its writer's."""
    modules = {type(sink).__module__ for sink in sinks}
    return sorted(modules | {f"{name.rpartition('.')[0]}.writer" for name in modules if name.startswith("penstock.")})
