"""What a start finds in ledger and Spark's log together; and the log restored from the ledger, where it lost files.

The ledger is synced, Spark's log is not (`spark_log`). A power cut, or a folder that came back from an older copy,
leaves a ledger that knows of later epochs than the log. Every manifest holds the barrier it was decided on, as Spark
wrote it, and the watermark that the epoch leads to. That is all that `offsets/N` and `commits/N` hold.

What is written again is what is missing, and a barrier that is not the one that was decided: only HDFS keeps a driver
that was superseded from renaming its `offsets/N` over that of the run which took over. Where state that the decided
epoch left is not there, nothing is started.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import layout
from penstock.checkpoint.belonging import history_of, overwritten
from penstock.checkpoint.spark_log import commit_text, reads_files, state_format_of
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
    """What the next start finds. `damaged` also where a barrier that Spark would go by is not the one that was decided;
    `LedgerCorrupt` where such a decision holds no copy of it."""
    ledger.settle()
    query = query_of(ledger, log)
    epoch, barrier = log.next_epoch()
    damaged = log.damaged() or (query is not None and log.query_id() is None)
    if query is None:
        return protocol.Found(epoch, barrier, damaged=damaged)
    found = protocol.Found(epoch, barrier, ledger.decisions_since(epoch, query), ledger.claims(query))
    decision = protocol.honoured(found)
    lost = overwritten(log, epoch - 1, completed(ledger, epoch - 1, query))
    if decision is not None:
        lost |= overwritten(log, decision.id.epoch, _manifest(ledger, decision.id))
    return replace(found, damaged=damaged or bool(lost))


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
    before = completed(ledger, epoch - 1, query)
    of_epoch = _manifest(ledger, decided) if decided is not None else None
    for number, manifest in ((epoch - 1, before), (epoch, of_epoch)):
        if number < 0 or (number == epoch and decided is None):
            continue
        wanted |= overwritten(log, number, manifest)
        if log.has_barrier(number):
            continue
        if manifest is None or manifest.file is None:
            return False
        wanted[layout.offsets(number)] = manifest.file
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
    for name, text in wanted.items():
        log.write_again(name, text)
    return True


def completed(ledger: Ledger, epoch: int, query: str | None) -> Manifest | None:
    """Of a complete epoch, the decision that was carried out: the newest that counts. One that a newer run found this
    epoch without, as its claim says, was written by a run that was superseded and committed nothing."""
    claims = [claim for claim in ledger.claims(query) if claim.epoch == epoch]
    found = [
        manifest
        for manifest in ledger.manifests(epoch)
        if manifest.query == query and all(protocol.counts(manifest.decision, claim) for claim in claims)
    ]
    return max(found, key=lambda manifest: manifest.decision.id, default=None)


def restore_barrier(ledger: Ledger, copy: SparkLog, epoch: int) -> None:
    """In a copy of the checkpoint: the barrier of a complete epoch, and what it stands for, is what was decided."""
    for name, text in overwritten(copy, epoch, completed(ledger, epoch, copy.query_id())).items():
        copy.write_again(name, text)


def _manifest(ledger: Ledger, decided: DecisionId) -> Manifest | None:
    return next((one for one in ledger.manifests(decided.epoch) if one.decision.id == decided), None)


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
        if reads_files(offset):
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
