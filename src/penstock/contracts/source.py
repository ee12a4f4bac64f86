"""What a source is: a description that becomes an ordinary streaming DataFrame."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.contracts.guarantees import Guarantee, Link

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.contracts.sink import CheckContext, Finding
    from penstock.deadline import Deadline
    from penstock.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class EpochRead:
    """What one position of an epoch reads: from `start` (None: the beginning) to `end`. `notes` is the folder in which
    Spark's source keeps its own."""

    spark: SparkSession
    epoch: int
    start: Any
    end: Any
    notes: Storage


class Source(ABC):
    """Small and without connections; positions live in Spark's checkpoint."""

    @abstractmethod
    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        """The streaming DataFrame."""

    def link(self, uid: str) -> Link:
        """Replayable sources promise exactly-once: the same positions give the same rows."""
        return Link("source", uid, Guarantee.EXACTLY_ONCE, f"replayable, {self.describe()}")

    def link_beside(self, uid: str, others: Sequence[Source]) -> Link:
        """The same in a job that reads `others` as well: one for each other place where a query reads a source, this
        one included."""
        return self.link(uid)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        """Connect and see that reading can work; write nothing."""
        return ()

    def warm_up(self, spark: SparkSession, uid: str) -> None:  # noqa: B027 - most have nothing to load
        """In a driver that waits for its turn: have loaded and connected what reading needs, and write nothing. What
        it raises means nothing: the start will tell."""

    def finished(self, offset: Any) -> bool:
        """Whether `offset` (Spark's JSON for this source after an epoch) is the end of a bounded input."""
        return False

    @property
    def bounded(self) -> bool:
        """Whether it comes to an end."""
        return False

    @property
    def ends_with_what_is_there(self) -> bool:
        """Bounded by what is there when the query starts, so that only Spark can tell where it ends."""
        return False

    @property
    def paced_by_position(self) -> bool:
        """Whether its reader must be told where the query stands, which Spark before 4.2 does not do in a run over
        what is there now."""
        return False

    @property
    def verifies(self) -> bool:
        """Whether `verify` is to be asked before each epoch that reads something."""
        return False

    def verify(self, uid: str, read: EpochRead) -> None:  # noqa: B027 - most leave it to Spark
        """Raise where Spark does not read all that the positions of an epoch name; nothing has been written yet."""

    @property
    def identified(self) -> bool:
        """Whether a part of it that was deleted and created again under its name can be told from the former one, by
        `identities`; then `parts` and `refuse_replaced` are asked, too."""
        return False

    def parts(self, offset: Any) -> Mapping[str, Any]:
        """The parts that `offset` (Spark's JSON for this source after an epoch) has positions in, with these."""
        return {}

    def identities(self, names: Collection[str], *, subscribed: bool = False) -> Mapping[str, str]:
        """The id of each of these parts, which no other part ever has; a part that has none, or is not there, is left
        out. `subscribed`: also of all others that a query would read if it started now."""
        return {}

    def refuse_replaced(self, uid: str, replaced: Mapping[str, tuple[str, str]]) -> None:  # noqa: B027
        """Raise, unless the user has accepted that positions go on in parts that have another id (the second) than the
        one that they were written for (the first)."""

    def start(self, job: str, uid: str, readers: Sequence[str]) -> None:  # noqa: B027 - most need nothing beside Spark
        """The job begins to run: start what must run beside its queries. `readers` names every place where a query
        reads this source."""

    def completed(self, uid: str, reader: str, offset: Any) -> None:  # noqa: B027 - most are never told
        """What `reader` has read up to `offset` is committed, and no restart asks for it again."""

    def stop(self) -> None:  # noqa: B027 - most have started nothing
        """The job has ended, well or not. Called once for each source, also where `start` failed."""

    def publish(self, job: str, uid: str, offset: Any) -> None:  # noqa: B027 - most sources have nobody to tell
        """Tell the world how far a committed epoch has come (lag tools). Best effort: never the truth, never fatal."""

    def read_positions(self, offset: Any) -> Mapping[str, Any]:
        """Each partition and how far it was read, from `offset` (Spark's JSON for this source after an epoch)."""
        return _flatten(json.loads(offset) if isinstance(offset, str) else offset)

    def end_positions(self, offset: Any, deadline: Deadline) -> Mapping[str, int]:
        """Where each partition of `offset` ends now, as far as it can be told before the deadline. For people who look:
        never called by an epoch."""
        return {}

    def jars(self) -> Sequence[str]:
        """Names of the locked jar sets this source needs, see `penstock.supply.jars`."""
        return ()

    def spark_conf(self) -> Mapping[str, str]:
        """Session settings this source wants; never override the user's."""
        return {}

    def describe(self) -> str:
        """One line for people; never a secret."""
        return type(self).__name__


def _flatten(offset: Any, name: str = "") -> dict[str, Any]:
    """Spark's offsets are numbers, or objects of them by topic and partition."""
    if not isinstance(offset, dict):
        return {} if offset is None else {name or "0": offset}
    return {
        inner: value
        for key, below in offset.items()
        for inner, value in _flatten(below, f"{name}-{key}" if name else str(key)).items()
    }


def reader_name(query: str, position: int) -> str:
    """A query may read one source at several positions, each as far as it has come."""
    return f"{query}[{position}]"
