"""Every error Penstock raises on purpose: `PenstockError` and its kinds.

Each message says what happened, what is safe, and what to do, in that order. `retryable` tells the restart strategy
whether trying again can help: `True` for what time or an operator can cure, `False` for what only a change of program,
configuration or data can.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from penstock.secrets import masked


class PenstockError(Exception):
    """The root. `happened`, `safe` and `to_do` are the sentences of the message; secrets in `happened` are masked."""

    retryable: ClassVar[bool] = False
    checkpoint_only: ClassVar[bool] = False  # fails one checkpoint, which the job can be set to tolerate
    usually_safe: ClassVar[str] = ""  # `safe`, where a call gives none

    def __init__(self, happened: str, *, safe: str | None = None, to_do: str = "") -> None:
        self.happened = happened = masked(happened)
        self.safe = safe = self.usually_safe if safe is None else safe
        self.to_do = to_do
        super().__init__(happened, safe, to_do)

    def __str__(self) -> str:
        safe, to_do = self.safe and f"Safe: {self.safe}", self.to_do and f"To do: {self.to_do}"
        return "\n".join(filter(None, (self.happened, safe, to_do)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self).__name__, self.happened, self.safe, self.to_do))

    def to_json(self) -> str:
        """One line that `from_json` turns into the same error in another process."""
        name = type(self).__name__
        return json.dumps({"error": name, "happened": self.happened, "safe": self.safe, "to_do": self.to_do})


class ConfigurationError(PenstockError):
    """The job cannot work as written; nothing was started."""

    usually_safe = "nothing was started."


class DuplicateUid(ConfigurationError):
    """Two sources or two sinks share a uid."""


class UidChanged(ConfigurationError):
    """The checkpoint belongs to other uids than the program has."""


class GuaranteeError(ConfigurationError):
    """A link of the chain promises less than the job asks."""


class TimeoutsContradict(ConfigurationError):
    """Transaction, checkpoint and broker timeouts cannot hold together."""


class TopicMissing(ConfigurationError):
    """A topic does not exist and may not be created."""


class TableMissing(ConfigurationError):
    """A table does not exist and may not be created."""


class AccessDenied(ConfigurationError):
    """Wrong password, or a right is missing."""


class MissingExtra(ConfigurationError):
    """A client library is not installed; the message names the extra."""

    @classmethod
    @contextmanager
    def named(cls, what: str, extra: str) -> Iterator[None]:
        """Around the imports that `what` needs and `extra` installs."""
        try:
            yield
        except ImportError as error:
            happened = f"{what} needs a client library that cannot be imported ({error})."
            to_do = f"pip install 'penstock[{extra}]' where the driver and the tasks run."
            raise cls(happened, to_do=to_do) from error


class ExecutorMismatch(ConfigurationError):
    """Executors have another Python or another Penstock than the driver, or lack a module that the job needs."""


class ArchiveMismatch(ConfigurationError):
    """An archive for executors was made for another platform, another Python or by another version, or is none."""


class ConnectUnsupported(ConfigurationError):
    """Spark Connect keeps the driver, which an epoch is driven from, out of reach."""


class ConnectorMissing(ConfigurationError):
    """No Kafka connector is known for this version of Spark: the user has to name the jars."""


class RealTimeRefused(ConfigurationError):
    """Real-time mode cannot run this query exactly once. The micro-batch mode can, or the message says otherwise."""


class NotEnoughSlots(RealTimeRefused):
    """Spark runs fewer tasks at a time than real-time queries have source partitions: some would never be read."""


class SchemaIncompatible(ConfigurationError):
    """A schema registry does not take a sink's schema for its subject."""


class DataError(PenstockError):
    """A row that can never be written, however often it is tried."""

    usually_safe = "nothing of this epoch is visible."


class SchemaMismatch(DataError):
    """Columns or types that the sink cannot take."""

    usually_safe = "nothing was written."


class ConstraintViolated(DataError):
    """Rows that break a rule of the target table: a key, a check, a reference, not null."""


class ValueTooLarge(DataError):
    """A row larger than the target accepts."""


class AsideLimitExceeded(DataError):
    """An epoch would set aside more rows than `aside_limit` allows. Nothing was decided."""


class LedgerError(PenstockError):
    """The ledger could not be read or written."""

    retryable = True


class LedgerFromTheFuture(LedgerError):
    """Written by a newer version of Penstock than this one."""

    retryable = False


class LedgerCorrupt(LedgerError):
    """A file of the ledger is half-written or altered."""

    retryable = False
    usually_safe = "nothing was changed."


class UnsafeName(LedgerCorrupt):
    """A ledger, a savepoint or a checkpoint names a file outside its folder: it was altered."""


class CheckpointBehind(LedgerError):
    """Spark's checkpoint has lost epochs that are decided, and they cannot be restored. Nothing was begun."""

    retryable = False


class StateLost(CheckpointBehind):
    """The state that a complete epoch left is not there any more, or half-written. Nothing was begun without it."""


class LedgerLost(LedgerError):
    """Transactions are open of a newer run than the ledger knows: it was deleted, or replaced by an older copy."""

    retryable = False


class StorageFull(LedgerError):
    """No space left where checkpoints, staging files or logs go."""


class StorageNotAtomic(LedgerError):
    """The storage cannot refuse a second create, so no decision on it would be safe."""

    retryable = False


class StorageNotCoherent(LedgerError):
    """The storage is mounted in a way that may show old listings, so a run would not see that a newer one exists."""

    retryable = False


class StorageNotShared(LedgerError):
    """Driver and tasks do not see each other's files, or might not. Nothing was decided."""

    retryable = False


class PositionsLost(PenstockError):
    """A source no longer has the rows that the checkpoint's positions name. None was skipped."""


class FilesMissing(PositionsLost):
    """Files that an epoch is to read are not there any more. They may come back."""

    retryable = True


class SourceRowsLost(PositionsLost):
    """Kafka has deleted rows of a topic before they were read, by retention or by a request. None was skipped."""


class TopicRecreated(PositionsLost):
    """A topic was deleted and created again since its positions were written; they say nothing of the new one."""


class MarksLost(PositionsLost):
    """The marks topic of a real-time query has lost marks, so what is visible is not known. Nothing was written."""


class SavepointError(PenstockError):
    """A savepoint could not be taken, read or restored; job and checkpoint are unchanged."""

    usually_safe = "nothing was started or changed."


class SavepointIncomplete(SavepointError):
    """It was never finished, or is none at all."""


class SavepointCorrupt(SavepointError):
    """A file of it is missing or altered."""


class NotRestorable(SavepointError):
    """The program cannot take over what is in the savepoint; the message says what, and what to change."""


class EpochError(PenstockError):
    """One epoch could not be completed."""

    retryable = True


class SchemaUnknown(EpochError):
    """A row's schema was not in the registry when the query started; the next start asks again."""


class CheckpointExpired(EpochError):
    """Before the decision: the epoch was not prepared within the checkpoint timeout. It is aborted and replays."""

    checkpoint_only = True


class PreCommitFailed(EpochError):
    """Before the decision: everything is aborted and the epoch replays from the same positions."""

    usually_safe = "nothing of this epoch is visible; it replays from the same positions."


class BarrierOverwritten(EpochError):
    """Before the decision: another driver has written other positions into Spark's log. The epoch wrote nothing."""


class StrayTask(EpochError):
    """Before the decision: a task does not know its epoch, and wrote nothing. The epoch is aborted and replays."""


class OutcomeUnknown(EpochError):
    """After the decision: a commit could neither be proven done nor lost."""


class WritersLost(EpochError):
    """After the decision: the other system ended prepared writers (expired or fenced)."""


class CommittedRowsLost(EpochError):
    """The other system no longer has a complete epoch: an older copy has taken its place, or a replica that lagged.
    Nothing is written on top of the gap."""

    retryable = False


class ReplayDiffers(EpochError):
    """A replay produced other rows than the decision recorded, so lost writers cannot be repaired."""

    retryable = False


class Superseded(PenstockError):
    """A newer run of the job has taken over; this one must not write any more."""


class LeaseLost(Superseded):
    """Another supervisor has the lease of the job, or may have it: this one could not renew it in time."""


class JobDrained(PenstockError):
    """A drain has closed every window of the job; going on would drop every row that still comes for one."""


class JobStopped(PenstockError):
    """The gate is closed: stop or cancel was asked for."""


class SystemUnavailable(PenstockError):
    """The other system does not answer."""

    retryable = True
    checkpoint_only = True


class ClusterUnavailable(SystemUnavailable):
    """No master of Spark's answers, or it has given the job no executor. Nothing was started."""

    checkpoint_only = False


class CredentialsExpired(SystemUnavailable):
    """The keys for the other system have run out. Renewed ones are found without a restart of the job."""


class SparkUnresponsive(PenstockError):
    """Spark cannot call the driver any more, or does not end a query. Only a new process can go on."""

    retryable = True


class TransactionRefused(PenstockError):
    """A transaction may not be ended that way (the ledger says otherwise), or not now (the job runs)."""


class ControlError(PenstockError):
    """A command could not be given to a running job, or the job could not carry it out."""


class JobNotFound(ControlError):
    """No job of that name or id runs, or several do."""


class DevelopmentError(PenstockError):
    """The development tools (broker, jars, Java) could not do their work."""


def _subclasses(root: type[PenstockError]) -> dict[str, type[PenstockError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes.update(_subclasses(child))
    return classes


def _rebuild(name: str, happened: str, safe: str, to_do: str) -> PenstockError:
    return _subclasses(PenstockError).get(name, PenstockError)(happened, safe=safe, to_do=to_do)


def from_json(line: str) -> PenstockError:
    """The error that `to_json` wrote; an unknown name becomes a plain `PenstockError`."""
    body = json.loads(line)
    return _rebuild(body["error"], body["happened"], body.get("safe", ""), body.get("to_do", ""))
