"""Which sources a streaming DataFrame reads, in the order in which Spark logs their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def leaf_ids(frame: DataFrame) -> list[frozenset[int]]:
    """One set of attribute ids for each leaf of the analysed plan, from left to right."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for index in range(leaves.size()):
        output = leaves.apply(index).output()
        found.append(frozenset(output.apply(column).exprId().id() for column in range(output.size())))
    return found


class Lineage:
    """Remembers the leaves of every source that was read, and finds them again in what users make of them."""

    def __init__(self) -> None:
        self._uids: dict[frozenset[int], str] = {}

    def remember(self, uid: str, frame: DataFrame) -> None:
        for leaf in leaf_ids(frame):
            self._uids[leaf] = uid

    def sources(self, frame: DataFrame) -> list[str]:
        """The uids of the sources `frame` reads. A source read twice is logged once by Spark, where it stands first."""
        uids = [self._uids[leaf] for leaf in leaf_ids(frame) if leaf in self._uids]
        return list(dict.fromkeys(uids))
