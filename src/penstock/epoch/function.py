"""What a function under `@job.epoch` gets: the batch, kept while it runs, and an `Epoch` to write through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.contracts.sink import TwoPhaseSink
    from penstock.epoch.outputs import EpochOutputs

EpochFunction = Callable[["DataFrame", "Epoch"], None]


class Epoch:
    """What a function under `@job.epoch` writes through. One decision makes all its outputs visible, or none is."""

    def __init__(self, outputs: EpochOutputs, uids: Mapping[int, str]) -> None:
        self._outputs, self._uids = outputs, uids

    @property
    def id(self) -> int:
        return self._outputs.epoch

    def write(self, frame: DataFrame, sink: str | TwoPhaseSink) -> None:
        """Prepare `frame` in `sink`: one of the sinks the epoch was declared with, or its uid."""
        uid = sink if isinstance(sink, str) else self._uids.get(id(sink))
        if uid is None:
            raise ConfigurationError(
                f"Epoch {self.id} writes to a sink that it was not declared with: {sink!r}.",
                safe="the epoch is not decided; nothing of it is visible.",
                to_do="name it in @job.epoch(frame, sinks={'uid': sink, …}).",
            )
        self._outputs.write(frame, uid)


@contextmanager
def kept(batch: DataFrame, persist: bool) -> Iterator[None]:
    """While this lasts, `batch` is computed once, in full."""
    if not persist:
        yield
        return
    batch.persist()
    try:
        # In full, before the function sees it: a stateful plan that is read only in part breaks its checkpoint.
        batch.write.format("noop").mode("overwrite").save()
        yield
    finally:
        batch.unpersist()
