"""What a start finds in ledger and Spark's log together; and the log restored from the ledger, where it lost files.

The ledger is synced, Spark's log is not (`spark_log`). A power cut, or a folder that came back from an older copy,
leaves a ledger that knows of later epochs than the log. Every manifest holds the barrier it was decided on, as Spark
wrote it, and the watermark that the epoch leads to. That is all that `offsets/N` and `commits/N` hold.

What is written again is only ever what is missing. A file that is there and says something else is left alone, and
nothing is started: somebody else has written it. The same where state that the decided epoch left is not there.

One file is removed: the barrier at the end of time that a drain has cut and never decided on. To run it would make
every later row late, and the drain has failed, was killed, or was superseded. It counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.belonging import check_barrier, history_of
from penstock.checkpoint.spark_log import commit_text, state_format_of
from penstock.epoch import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.checkpoint.decision import DecisionId
    from penstock.checkpoint.ledger import Ledger, Manifest
    from penstock.checkpoint.spark_log import Barrier, SparkLog
    from penstock.epoch.protocol import Found

_STATE = re.compile(r"^(\d+)(?:_[^.]+)?\.(?:delta|snapshot|zip|changelog)$")
_PARTITION = re.compile(r"^\d+$")
_LOGGED = re.compile(r"^(\d+)(?:\.compact)?$")  # in the log of a source that reads files


def look(ledger: Ledger, log: SparkLog) -> Found:
    """What the next start finds. Raises `LedgerCorrupt` where a barrier is not the file that was decided on."""
    ledger.settle()
    query = query_of(ledger, log)
    epoch, barrier = log.next_epoch()
    damaged = log.damaged() or (query is not None and log.query_id() is None)
    if query is None:
        return protocol.Found(epoch, barrier, damaged=damaged)
    found = protocol.Found(epoch, barrier, ledger.decisions_since(epoch, query), ledger.claims(query), damaged)
    decision = protocol.honoured(found)
    decided = decision.id if decision is not None and decision.id.epoch == epoch else None
    if _drain_undecided(ledger, log, epoch - 1, query):
        found = replace(found, damaged=True)
    else:
        check_barrier(ledger, log, epoch - 1, query)
    if barrier and _drain_undecided(ledger, log, epoch, query, decided, complete=False):
        return replace(found, barrier=False, damaged=True)
    if barrier and decided is not None:
        check_barrier(ledger, log, epoch, query, decided)
    return found


def query_of(ledger: Ledger, log: SparkLog) -> str | None:
    """The id that Spark gave the checkpoint, also where its own note of it is lost. None before its first start."""
    return log.query_id() or ledger.last_query(history_of(log))


def restore(ledger: Ledger, log: SparkLog, epoch: int, decided: DecisionId | None) -> bool:
    """Make Spark's log say that `epoch` comes next, with the barrier of `decided`. False, and nothing changed, where
    something is missing that the ledger does not have."""
    query = query_of(ledger, log)
    wanted: dict[str, str] = {}  # in the order in which they are written
    if query is not None and log.query_id() is None:
        wanted[layout.QUERY_ID] = json.dumps({"id": query}, separators=(",", ":"))
    before = _manifest(ledger, epoch - 1, query, None)
    of_epoch = _manifest(ledger, epoch, query, decided) if decided is not None else None
    drains = [
        number
        for number, complete in ((epoch - 1, True), (epoch, False))
        if query is not None and _drain_undecided(ledger, log, number, query, decided, complete=complete)
    ]
    for number, manifest in ((epoch - 1, before), (epoch, of_epoch)):
        if number < 0 or (number == epoch and decided is None) or (log.has_barrier(number) and number not in drains):
            continue
        if manifest is None or manifest.offsets is None:
            return False
        wanted[layout.offsets(number)] = manifest.offsets
    if epoch > 0 and not log.has_commit(epoch - 1):
        commit = _commit_before(log, epoch, before, of_epoch, wanted)
        if commit is None:
            return False
        wanted[layout.commits(epoch - 1)] = commit
    newest = epoch if decided is not None else epoch - 1
    if wanted and newest >= 0 and not _left_whole(log, newest, before, of_epoch, wanted):
        return False
    for name in log.torn():
        log.remove_torn(name)
    for number in drains:
        log.remove(layout.offsets(number))
    for name, text in wanted.items():
        log.write_again(name, text)
    return True


def _drain_undecided(
    ledger: Ledger, log: SparkLog, epoch: int, query: str, decided: DecisionId | None = None, *, complete: bool = True
) -> bool:
    """Whether the barrier of `epoch` was cut by a drain and the epoch was not decided on it: not by `decided`, the one
    decision that counts; nor, where it is complete, by any. One that is complete without a decision was not to be
    decided (at least once), and counts."""
    barrier = log.barrier(epoch) if log.has_barrier(epoch) else None
    if barrier is None or barrier.drains != query:
        return False
    manifests = [one for one in ledger.manifests(epoch) if one.query == query]
    digests = [one.barrier for one in manifests if complete or one.decision.id == decided]
    if not complete and ledger.has_begun(epoch, query):
        return False  # at most once: it is never begun again, so it is brought to its end
    return barrier.digest not in digests and (bool(digests) or not complete)


def _manifest(ledger: Ledger, epoch: int, query: str | None, decided: DecisionId | None) -> Manifest | None:
    """The one named; else, of a complete epoch, the newest: of several decisions it is the one that was carried out."""
    found = (
        [manifest for manifest in ledger.manifests(epoch) if manifest.query == query]
        if epoch >= 0 and query is not None
        else []
    )
    if decided is not None:
        found = [manifest for manifest in found if manifest.decision.id == decided]
    newest = max(found, key=lambda manifest: manifest.decision.id, default=None)
    if newest is None or newest.offsets is None:
        return newest
    intact = hashlib.sha256(newest.offsets.encode()).hexdigest() == newest.barrier
    return newest if intact else None


def _commit_before(
    log: SparkLog, epoch: int, before: Manifest | None, of_epoch: Manifest | None, wanted: dict[str, str]
) -> str | None:
    """What belongs into `commits/` for the epoch before; None where that would be a guess."""
    barrier = _barrier(log, epoch - 1, wanted)
    if barrier is None or state_format_of(barrier, log.state_format) != "1" or not log.knows_commits():
        return None
    watermark = before.decision.watermark if before is not None else None
    if watermark is None and of_epoch is not None:
        after = _barrier(log, epoch, wanted)  # Spark hands the watermark on from the one file to the other
        watermark = after.metadata.get("batchWatermarkMs") if after is not None else None
    return None if watermark is None else commit_text(int(watermark))


def _barrier(log: SparkLog, epoch: int, wanted: dict[str, str]) -> Barrier | None:
    text = wanted.get(layout.offsets(epoch))
    return log.parse_barrier(epoch, text.encode()) if text is not None else log.barrier(epoch)


def _left_whole(
    log: SparkLog, newest: int, before: Manifest | None, of_epoch: Manifest | None, wanted: dict[str, str]
) -> bool:
    """Whether what the tasks and sources of epoch `newest` left beside the log is there: a folder from an older copy
    lacks it, and Spark would stop at it in every start, or read files once more."""
    stateful = any(manifest is not None and manifest.stateful for manifest in (before, of_epoch))
    stores = list(_stores(log))
    if (stateful and not stores) or any(newest + 1 not in versions for versions in stores):
        return False
    barrier = _barrier(log, newest, wanted)
    offsets: tuple[Any, ...] = barrier.offsets if barrier is not None else ()
    for index, offset in enumerate(offsets):
        if isinstance(offset, dict) and offset.keys() == {"logOffset"}:
            logged = [int(match[1]) for name in log.names(layout.source(index)) if (match := _LOGGED.match(name))]
            if max(logged, default=-1) < offset["logOffset"]:
                return False
    return True


def _stores(log: SparkLog) -> Iterator[set[int]]:
    """The versions that each state store has on disk. A store lies in its partition's folder, or below it by name."""
    for operator in log.names(layout.STATE):
        for partition in filter(_PARTITION.match, log.names(layout.operator(operator))):
            folder = f"{layout.operator(operator)}/{partition}"
            names = log.names(folder)
            below = [log.names(f"{folder}/{name}") for name in names if "." not in name]
            for files in (names, *below):
                versions = {int(match[1]) for name in files if (match := _STATE.match(name))}
                if versions:
                    yield versions
