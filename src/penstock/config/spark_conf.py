"""Settings of Spark's that follow from options, and how they get along with what Spark was told directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.config.checkpoints import contradiction_error
from penstock.config.levels import DEFAULT, Value, describe_setting
from penstock.config.option import Part
from penstock.config.state import StateBackend

PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class SparkSetting:
    """A Spark setting that follows from an option. `side` names the option where somebody has set it; without one it
    is a default, which gives way to whatever Spark was told."""

    value: str
    side: str | None

    def agrees(self, key: str, other: str, where: str) -> bool:
        """Whether this is what Spark was told too. If not, and it was asked for: an error that names both."""
        if _plain(other) == _plain(self.value):
            return True
        if self.side is not None:
            raise contradiction_error(self.side, describe_setting(key, other, where), f"it means {key}={self.value}")
        return False


def derive_spark_settings(
    values: Mapping[tuple[Part, str], Value],
    backend: StateBackend | None,
    conf: Mapping[str, str],
    origin: Mapping[str, str],
) -> dict[str, SparkSetting]:
    """Everything that follows. `backend` is None where only Spark was told which: then no default of ours belongs to
    it. `conf` is what the user gave by Spark's own names, `origin` says where."""
    kind = values["state", "kind"]
    wanted: dict[str, SparkSetting] = {}
    if backend is not None:
        explicit = kind.where != DEFAULT
        if explicit and backend.managed_memory is None:
            backend = replace(backend, managed_memory=True)
        for key, (value, name) in backend.conf().items():
            setting = values["state", name]
            if setting.where != DEFAULT or explicit:
                wanted[key] = SparkSetting(value, None if setting.where == DEFAULT else setting.side)
    parallelism = values["spark", PARTITIONS]
    if parallelism.where != DEFAULT:
        wanted[PARTITIONS] = SparkSetting(str(parallelism.value), parallelism.side)
    return {
        key: setting
        for key, setting in wanted.items()
        if key not in conf or setting.agrees(key, conf[key], origin[key])
    }


def _plain(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text.strip().lower()
