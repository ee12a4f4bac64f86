"""Transactional ids with a request that was never answered, known to everything in this process.

Such a request may yet reach the broker, and would end whatever its producer has open then. So nobody may tell a writer
to go on with one of these: not the committer that sent the request, nor another that found the transaction ended later
(the drainer has one of its own), nor one that was opened since. Another process need not know: its generation is
another, and a writer never uses an earlier generation's producer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Unsure:
    """Grows by one id for each lost answer, and never shrinks: an id is some fifty bytes, a lost answer is rare."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}  # in the order they came

    def add(self, ids: Iterable[str]) -> None:
        with self._lock:
            self._ids.update(dict.fromkeys(ids))

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def newest(self, prefix: str, most: int) -> list[str]:
        """Those whose name begins so, the last `most` of them."""
        with self._lock:
            return [name for name in self._ids if name.startswith(prefix)][-most:]


#: This process's.
UNSURE = Unsure()
