"""Claim mode: a savepoint that a job was restored from belongs to it, and goes when it is not needed any more.

It is needed until every query of the job has a complete epoch of its own after the restore: until then a restart might
want it, and a person certainly would. A job that dies before finds the claim in its record of the restore.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import SavepointIncomplete
from penstock.savepoints import savepoint
from penstock.storage.open import tree_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from penstock.checkpoint.history import Restored

log = logging.getLogger("penstock")


class Claim:
    """An event listener that disposes of the savepoint once, in a thread of its own."""

    def __init__(self, restored: Restored, queries: Iterable[str], spark: SparkSession) -> None:
        self._restored, self._spark = restored, spark
        self._waiting = set(queries)
        self.thread: threading.Thread | None = None

    @classmethod
    def of(cls, restored: Restored | None, queries: Iterable[str], spark: SparkSession) -> Claim | None:
        """None where nothing is claimed, or it is gone already. Only what still is the very savepoint counts."""
        if restored is None or not restored.claim:
            return None
        try:
            found = savepoint.read(tree_at(restored.source, spark))
        except SavepointIncomplete:
            return None
        return cls(restored, queries, spark) if found.id == restored.savepoint else None

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "completed" or self.thread is not None:
            return
        self._waiting.discard(str(event["query"]))
        if not self._waiting:
            self.thread = threading.Thread(target=self._dispose, name="penstock-claim", daemon=True)
            self.thread.start()

    def _dispose(self) -> None:
        source = self._restored.source
        try:
            savepoint.dispose(source, self._spark)
            log.info("%s, which this job had claimed, is not needed any more and is deleted", source)
        except Exception as error:
            log.warning("%s, which this job had claimed, could not be deleted: %s", source, error)
