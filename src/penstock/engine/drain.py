"""The last epoch of a job that is stopped with a drain, and starts that come after one.

Its barrier reads nothing and has a watermark beyond all time, so that windows emit what they hold. Such a barrier is
dangerous: whoever runs it by accident makes every later row late, without an error. So it bears a mark, and

* it counts only once its epoch is decided: any recovery removes one that is not (`log_repair`), so a drain that fails,
  is killed or is superseded leaves the checkpoint what it was;
* a run that did not ask for it refuses to run it (`positions`);
* a start behind one that is decided is refused, unless it is restored on purpose: a copy has an id of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.spark_log import END_OF_TIME, STATE_FORMAT
from penstock.errors import JobDrained, SavepointError

if TYPE_CHECKING:
    from penstock.checkpoint.spark_log import SparkLog
    from penstock.engine.coordinator import Coordinator
    from penstock.engine.protocol import Resume


def final_epoch(uid: str, log: SparkLog, resume: Resume) -> int | None:
    """The epoch that closes all windows of a query that has recovered so far; None where they hold nothing back, for
    example because there is no watermark. Raises `SavepointError` where it cannot be run."""
    epoch = resume.epoch
    if is_due(resume):
        raise not_held(uid, f"epoch {epoch} is decided and has to be written again first")
    closed = log.closed_up_to(epoch - 1) if epoch else 0
    if closed in (0, END_OF_TIME):
        return None
    if closed is None or log.committed_watermark(epoch - 1) is None:
        why = f"Spark's commit log is in a format that is not known, as with version 2 of {STATE_FORMAT}"
        raise not_held(uid, f"its windows cannot be closed: {why}")
    return epoch


def cut_final(coordinator: Coordinator, log: SparkLog, epoch: int) -> None:
    """Write the barrier at the end of time, in place of one that is not decided: Spark would cut it anew, and nothing
    of it is visible.

    No file system replaces a file only if no other run has. So look before; and again after, as every start does before
    Spark's. What a superseded drain has written stays, since the newer run may be at work there, and counts for
    nothing."""
    if coordinator.has_begun(epoch):
        raise not_held(coordinator.query, f"epoch {epoch} was begun and, at most once, has to be skipped first")
    coordinator.refuse_superseded()
    log.end_of_time(epoch)
    coordinator.drains_at = epoch


def is_due(resume: Resume) -> bool:
    """Whether the next epoch is decided and has to be run once more."""
    return resume.action not in ("none", "finished")


def refuse_drained(uid: str, log: SparkLog, job: str) -> None:
    """Raise `JobDrained` where the newest complete epoch has closed all windows. `job` is the job's folder."""
    if log.drained(log.next_epoch()[0] - 1):
        raise JobDrained(
            f"Query {uid!r} was drained: its windows are closed up to the end of time, and every row that comes for one"
            " is late.",
            safe="nothing was read; what the windows held is visible, once.",
            to_do="go on from a savepoint that was taken before the drain. To go on all the same, with late rows"
            f" dropped, restore this checkpoint: penstock run -s {job} JOB.py.",
        )


def not_held(uid: str, why: str) -> SavepointError:
    """The error for a query that cannot be brought to rest between two epochs."""
    return SavepointError(
        f"Query {uid!r} cannot be held between two epochs: {why}.",
        safe="nothing was changed.",
        to_do="see the job's log; ask again when it runs.",
    )
