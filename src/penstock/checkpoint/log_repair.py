"""What a start finds in ledger and Spark's log together; and the log restored from the ledger, where it lost files.

The ledger is synced, Spark's log is not (`spark_log`). A power cut, or a folder that came back from an older copy,
leaves a ledger that knows of later epochs than the log. Every manifest holds the barrier it was decided on, as Spark
wrote it, and the watermark that the epoch leads to. That is all that `offsets/N` and `commits/N` hold.

What is written again is what is missing, and a barrier that is not the one that was decided: only HDFS keeps a driver
that was superseded from renaming its `offsets/N` over that of the run which took over. Where state that the decided
epoch left is missing, nothing is started.

Only leftovers of attempts without a decision in force are removed: the barrier at the end of time of a drain, which
would make every later row late; that of a real-time query, whose rows are visible already or not its epoch's; a barrier
whose source has lost its note of the files to read; and all of a first epoch that was never completed, beside which
Spark would refuse to go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from penstock.checkpoint import layout
from penstock.checkpoint.decision import CheckpointState, DecisionId, StateIds, counts, honoured, next_epoch
from penstock.checkpoint.ledger import Ledger, Manifest
from penstock.checkpoint.open import history_of, overwritten
from penstock.checkpoint.spark_files import lost_state
from penstock.checkpoint.spark_log import Barrier, SparkLog
from penstock.errors import StateLost
from penstock.storage.tree import checksum_file

_STATE = re.compile(r"^(\d+)(?:_([^.]+))?\.(?:delta|snapshot|zip|changelog)$")
_PARTITION = re.compile(r"^\d+$")


def look(ledger: Ledger, log: SparkLog, *, running: bool = False) -> CheckpointState:
    """What the next start finds. `damaged` also where a barrier that Spark would go by is not the one that was decided;
    `LedgerCorrupt` where such a decision holds no copy of it. `running`: Spark's query has started, so what it has
    begun is no leftover."""
    ledger.settle()
    query, noted = query_of(ledger, log), log.noted_id()
    if noted is not None and query is not None:
        log.belongs_to(query)
    epoch, barrier = log.next_epoch()
    damaged = log.damaged() or noted != query
    undecided = not running and _unusable(log, epoch, barrier)
    if query is None:
        return CheckpointState(epoch, barrier, damaged=damaged or undecided)
    state = CheckpointState(epoch, barrier, ledger.decisions_since(epoch, query), ledger.claims(query))
    decision = honoured(state)
    decided = decision.id if decision is not None and decision.id.epoch == epoch else None
    void = decided is None and _counts_for_nothing(ledger, log, epoch, query)
    replaced = overwritten(log, epoch - 1, completed(ledger, epoch - 1, query))
    if decision is not None:
        replaced |= overwritten(log, decision.id.epoch, _manifest(ledger, decision.id))
    leftover = void or (decision is None and undecided)
    return replace(state, barrier=barrier and not void, damaged=damaged or leftover or bool(replaced))


def _unusable(log: SparkLog, epoch: int, barrier: bool) -> bool:
    """Whether an attempt at `epoch`, if it was not decided, may have left something that Spark cannot go on from."""
    written = log.barrier(epoch) if barrier else None
    return epoch == 0 or (written is not None and not log.notes_reach(written))


def query_of(ledger: Ledger, log: SparkLog) -> str | None:
    """The id that Spark gave the checkpoint, also where its own note of it is lost. None before its first start.

    Two drivers that start at the same moment may both write that note, the second long after the first, if it stalls.
    The barriers tell whose checkpoint it is: the newest decided one in the log was decided under the id that counts."""
    if (noted := log.query_id()) is None:
        return ledger.last_query(history_of(log))
    epoch, _ = log.next_epoch()
    for number in (epoch, epoch - 1):  # the epoch under way may not be decided
        if log.has_barrier(number) and (barrier := log.barrier(number)) is not None:
            for manifest in reversed(ledger.manifests(number)):
                if (manifest.history, manifest.barrier) == (history_of(log), barrier.digest):
                    return manifest.query
    return noted


def restore(
    ledger: Ledger,
    log: SparkLog,
    epoch: int,
    decided: DecisionId | None,
    *,
    running: bool = False,
    fence: Callable[[], None] = lambda: None,
) -> list[str] | None:
    """Make Spark's log say that `epoch` comes next, with the barrier of `decided`. The names that were written or
    removed for that. None, and nothing changed, where something is missing that the ledger does not have. `fence`
    raises where a newer run has registered."""
    query = query_of(ledger, log)
    wanted: dict[str, str] = {}  # in the order in which they are written
    if query is not None and log.noted_id() != query:
        wanted[layout.QUERY_ID] = json.dumps({"id": query}, separators=(",", ":"))
    before = completed(ledger, epoch - 1, query)
    of_epoch = _manifest(ledger, decided) if decided is not None else None
    for number, manifest in ((epoch - 1, before), (epoch, of_epoch)):
        if number < 0 or (number == epoch and decided is None):
            continue
        wanted |= overwritten(log, number, manifest)
        if log.has_barrier(number):
            continue
        if manifest is None or manifest.file is None:
            return None
        wanted[layout.offsets(number)] = manifest.file
    if epoch > 0 and not log.has_commit(epoch - 1):
        if (commit := _commit_before(log, epoch, before, of_epoch, wanted)) is None:
            return None
        wanted[layout.commits(epoch - 1)] = commit
    newest = epoch if decided is not None else epoch - 1
    if wanted and newest >= 0 and not _left_whole(log, newest, before, of_epoch, wanted):
        return None
    if newest < 0 and any(version > 1 for versions in _stores(log) for version, _ in versions):
        return None  # state of a later epoch than the first: it was complete, and the log of it is lost
    torn = log.torn()
    for name in torn:
        log.remove_torn(name)
    undecided = _remove_undecided(ledger, log, epoch, query, fence) if decided is None and not running else []
    for name, text in wanted.items():
        log.write_again(name, text)
    return [*torn, *undecided, *wanted]


def finish(
    ledger: Ledger,
    log: SparkLog,
    epoch: int,
    watermark: int | None,
    ids: StateIds | None = None,
    fence: Callable[[], None] = lambda: None,
) -> bool:
    """Complete Spark's log for a decided epoch. False where that would be a guess, or where its state is not whole:
    then Spark runs it once more, and makes the state again."""
    if _state_lost(ledger, log, epoch, ids) is None:
        return log.finish(epoch, watermark, ids)
    if epoch == 0:
        log.begin_anew(fence)
    return False


def _state_lost(ledger: Ledger, log: SparkLog, epoch: int, ids: StateIds | None) -> str | None:
    """What is not there of the state that epoch `epoch` left, where that is cheap to see and may come about."""
    if epoch < 0 or not log.storage.forgetful:
        return None
    sizes = log.storage.sizes(layout.STATE)
    if not sizes and any(manifest.stateful for manifest in ledger.manifests(epoch) if manifest.query == log.query_id()):
        return f"{layout.STATE}, all of it"
    return lost_state(log.storage, epoch, sizes, ids)


def keep_state(log: SparkLog, version: int, generation: int) -> None:
    """Before the first decision of a run: give the state of its epoch further names, for `refuse_lost_state`. A
    superseded run may write over that state, and no later one: it looks for newer runs before each epoch."""
    files = log.storage.sizes(layout.STATE)
    versions = {path: int(match[1]) for path in files if (match := _STATE.match(path.rpartition("/")[2]))}
    for folder in log.names(layout.KEPT):
        if int(folder.partition(".")[0]) < min(versions.values(), default=0):
            log.storage.delete_folder(f"{layout.KEPT}/{folder}")
    for name in (name for path in versions if versions[path] == version for name in (path, checksum_file(path))):
        log.storage.link(name, f"{layout.KEPT}/{version:010}.g{generation:08}/{name.replace('/', '+')}")


def refuse_lost_state(
    ledger: Ledger, log: SparkLog, state: CheckpointState, query: str, fence: Callable[[], None] = lambda: None
) -> None:
    """`StateLost` where the epoch that comes next cannot load the state of the one before it: Spark would fail of that
    in every start. What was kept is put back first. A log that is behind is another matter: see `restore`."""
    epoch = state.epoch - 1
    ids = log.state_ids(epoch)
    lost = _state_lost(ledger, log, epoch, ids) if next_epoch(state) == state.epoch else None
    if lost is not None:
        fence()
        for folder in log.names(layout.KEPT):  # of one epoch the newest run's comes last
            for name in log.names(f"{layout.KEPT}/{folder}"):
                log.storage.link(f"{layout.KEPT}/{folder}/{name}", name.replace("+", "/"))
        lost = _state_lost(ledger, log, epoch, ids)
    if lost is None:
        return
    complete = [number for number in range(epoch, -1, -1) if log.has_commit(number)]
    whole = next((one for one in complete if _state_lost(ledger, log, one, log.state_ids(one)) is None), None)
    folder = log.location.rpartition("/")[0]
    at = "" if whole is None else f" from {folder}/{layout.CHECKPOINTS}/{layout.checkpoint_name(whole)},"
    raise StateLost(
        f"Query {query!r} goes on after epoch {epoch}, and {log.location} has lost of its state: {lost}.",
        safe="nothing was begun; what is committed stays committed.",
        to_do=f"bring the folder back from a copy of the same moment as the ledger; or go on{at} from a savepoint"
        " or under another query uid: rows of later epochs are then written a second time.",
    )


def _remove_undecided(
    ledger: Ledger, log: SparkLog, epoch: int, query: str | None, fence: Callable[[], None]
) -> list[str]:
    removed, barrier = [], log.barrier(epoch)
    if barrier is not None and (_counts_for_nothing(ledger, log, epoch, query) or not log.notes_reach(barrier)):
        fence()
        log.remove(layout.offsets(epoch))
        removed = [layout.offsets(epoch)]
    return removed + log.begin_anew(fence) if epoch == 0 else removed


def _counts_for_nothing(ledger: Ledger, log: SparkLog, epoch: int, query: str | None) -> bool:
    """Whether the barrier of an undecided epoch is that of a drain or of a real-time query. A drain that was begun at
    most once is never begun again, so it is finished."""
    barrier = log.barrier(epoch) if query is not None and log.has_barrier(epoch) else None
    if barrier is None:
        return False
    return barrier.lanes is not None or (barrier.drains == query and not ledger.has_begun(epoch, query))


def completed(ledger: Ledger, epoch: int, query: str | None) -> Manifest | None:
    """Of a complete epoch, the decision that was carried out: the newest that counts. One that a newer run found this
    epoch without, as its claim says, was written by a run that was superseded and committed nothing."""
    claims = [claim for claim in ledger.claims(query) if claim.epoch == epoch]
    manifests = [manifest for manifest in ledger.manifests(epoch) if manifest.query == query]
    valid = [item for item in manifests if all(counts(item.decision, claim) for claim in claims)]
    return max(valid, key=lambda manifest: manifest.decision.id, default=None)


def restore_barrier(ledger: Ledger, copy: SparkLog, epoch: int) -> None:
    """Restore, in a copy of the checkpoint, the decided barrier of a complete epoch and the notes of its sources."""
    for name, text in overwritten(copy, epoch, completed(ledger, epoch, copy.query_id())).items():
        copy.write_again(name, text)


def _manifest(ledger: Ledger, decided: DecisionId) -> Manifest | None:
    return next((manifest for manifest in ledger.manifests(decided.epoch) if manifest.decision.id == decided), None)


def _commit_before(
    log: SparkLog, epoch: int, before: Manifest | None, of_epoch: Manifest | None, wanted: dict[str, str]
) -> str | None:
    """What belongs into `commits/` for the epoch before; None where that would be a guess."""
    watermark = before.decision.watermark if before is not None else None
    if watermark is None and of_epoch is not None:
        after = _barrier(log, epoch, wanted)  # Spark hands the watermark on from the one file to the other
        watermark = after.metadata.get("batchWatermarkMs") if after is not None else None
    return log.commit_text(epoch - 1, watermark, before.decision.state_ids if before is not None else None)


def _barrier(log: SparkLog, epoch: int, wanted: dict[str, str]) -> Barrier | None:
    text = wanted.get(layout.offsets(epoch))
    return log.parse_barrier(epoch, text.encode()) if text is not None else log.barrier(epoch)


def _left_whole(
    log: SparkLog, newest: int, before: Manifest | None, of_epoch: Manifest | None, wanted: dict[str, str]
) -> bool:
    """Whether what the tasks and sources of epoch `newest` left beside the log is there: a folder from an older copy
    lacks it, and Spark would stop at it in every start, or read files once more."""
    stateful = any(manifest is not None and manifest.stateful for manifest in (before, of_epoch))
    stores, manifest = list(_stores(log)), of_epoch or before
    ids = log.state_ids(newest) or (manifest.decision.state_ids if manifest is not None else None)
    if (stateful and not stores) or not all(_reaches(versions, newest + 1, ids) for versions in stores):
        return False
    barrier = _barrier(log, newest, wanted)
    return barrier is None or log.notes_reach(barrier)


def _reaches(versions: set[tuple[int, str]], version: int, ids: StateIds | None) -> bool:
    decided = {name for partitions in (ids or {}).values() for stores in partitions for name in stores}
    return any(number == version and (name in decided or not decided) for number, name in versions)


def _stores(log: SparkLog) -> Iterator[set[tuple[int, str]]]:
    """The versions that each state store has on disk, with their ids, empty in format 1. A store lies in its
    partition's folder, or below it by name."""
    for operator in log.names(layout.STATE):
        for partition in filter(_PARTITION.match, log.names(layout.operator(operator))):
            folder = f"{layout.operator(operator)}/{partition}"
            names = log.names(folder)
            below = [log.names(f"{folder}/{name}") for name in names if "." not in name]
            for files in (names, *below):
                if versions := {(int(match[1]), match[2] or "") for name in files if (match := _STATE.match(name))}:
                    yield versions
