"""What a source is: a description that becomes an ordinary streaming DataFrame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from penstock.guarantees import Guarantee, Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.sinks.base import CheckContext, Finding


class Source(ABC):
    """Small and without connections; positions live in Spark's checkpoint."""

    @abstractmethod
    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        """The streaming DataFrame."""

    def link(self, uid: str) -> Link:
        """Replayable sources promise exactly-once: the same positions give the same rows."""
        return Link("source", uid, Guarantee.EXACTLY_ONCE, f"replayable, {self.describe()}")

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Connect and see that reading can work; write nothing."""
        return ()

    def finished(self, offset: Any) -> bool:
        """Whether `offset` (Spark's JSON for this source after an epoch) is the end of a bounded input."""
        return False

    @property
    def bounded(self) -> bool:
        return False

    def publish(self, job: str, uid: str, offset: Any) -> None:  # noqa: B027 - most sources have nobody to tell
        """Tell the world how far a committed epoch has come (lag tools). Best effort: never the truth, never fatal."""

    def jars(self) -> Sequence[str]:
        """Names of the locked jar sets this source needs, see `penstock.runtime.jars`."""
        return ()

    def spark_conf(self) -> Mapping[str, str]:
        """Session settings this source wants; never override the user's."""
        return {}

    def describe(self) -> str:
        """One line for people; never a secret."""
        return type(self).__name__
