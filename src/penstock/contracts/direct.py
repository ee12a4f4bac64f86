"""At-least-once through a two-phase sink: a task that commits what it has prepared, by itself and at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT_SECONDS = 60.0


class CommittingWriter(Writer):
    """Nobody decides: should the task or the driver die afterwards, the epoch replays and its rows come again."""

    def __init__(self, sink: TwoPhaseSink, scope: WriterScope) -> None:
        self._sink, self._scope, self._rows = sink, scope, 0
        self._writer = sink.open_writer(scope)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._writer.write(batch)

    def pre_commit(self) -> Mapping[str, Any]:
        payload = self._writer.pre_commit()
        scope, deadline = self._scope, Deadline(_COMMIT_SECONDS)
        committer = self._sink.open_committer(scope.sink)
        try:
            prepared = Committable(scope.sink.uid, scope.partition, self._rows, 0, payload)
            outcomes = committer.commit(scope.epoch, committer.seal([prepared], deadline), deadline)
        finally:
            committer.close()
        outcome = outcomes.get(scope.partition, Outcome.UNKNOWN)
        if not outcome.visible:
            raise PreCommitFailed(
                f"Writer {scope.partition} of sink {scope.sink.uid!r} could not commit in its task: {outcome.value}.",
                safe="the epoch is not complete and replays; rows that became visible come again.",
                to_do="nothing, if the target system was away for a moment; else see that it answers.",
            )
        return {}

    def abort(self) -> None:
        self._writer.abort()
