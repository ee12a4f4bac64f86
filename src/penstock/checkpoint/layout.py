"""Where everything is in a checkpoint, and how durable files are sealed. No other module spells these names.

    STORAGE/JOB/
      queries/UID.json                        what the job consists of
      global/0000000012.json                  one decided epoch of every query, see `record`
      restores/0000000002.json                which history counts since when, see `history`
      restoring/0000000002.json               the restore that was begun under this number
      deleting/3f2a9c41d07e.json              the checkpoint is being deleted
      lease/0000000012.json                   which of several supervisors runs the job, see `lease_log`
      UID/
        spark/, spark-3f2a9c41d07e/           Spark's checkpoint of the query: one folder per history
          metadata                            the query's id
          offsets/12, commits/12              the barrier of epoch 12, and that it is complete, see `spark_log`
          sources/0/…, state/0/0/…            what sources and stateful operators keep
          _penstock/sources/0000000001.json   what the positions belong to, see `engine.inputs`
        ledger/                               see `ledger`
        inflight/QUERY-ID/SINK/               see `inflight`; what its drainer decides is in `drain`, see `ledger`
        checkpoints/chk-12.json               what is known of epoch 12, see `record`
    SAVEPOINT/
      _metadata                               written last, over everything below
      queries/UID/spark/, queries/UID/state/  Spark's checkpoint; the state of a canonical one
    CHECKPOINT/_penstock/                     the ledger of a drop-in, inside Spark's checkpoint
    OUTPUT/_penstock/                         what the file and table sinks keep beside their data

A sealed file is one line of JSON with its format's name and version, and a SHA-256 of its body: a half-written or
altered file is recognised, and a file of a newer version is refused, never misread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import LedgerCorrupt, LedgerFromTheFuture
from penstock.storage.storage import Storage

# Versions. A change of meaning raises one, and readers keep reading the older ones.
VERSION = 1  # of every sealed file
INFLIGHT_VERSION = 1  # of a file of the in-flight log
CANONICAL_VERSION = 1  # of the state in a canonical savepoint
QUERY_VERSION = 1  # of what a job's folder says of a query

# A job's folder
QUERIES, GLOBAL, RESTORES, RESTORING = "queries", "global", "restores", "restoring"
DELETING, LEASE = "deleting", "lease"

# A query's folder
FIRST = "spark"  # the history that began with the job; and Spark's checkpoint in a savepoint
LEDGER, INFLIGHT, CHECKPOINTS = "ledger", "inflight", "checkpoints"
SCHEMAS = "schemas"  # of a registry, that a source or sink of the query has met

# Spark's checkpoint
OFFSETS, COMMITS, SOURCES, STATE, QUERY_ID = "offsets", "commits", "sources", "state", "metadata"
DESCRIPTIONS = "_metadata/v2"  # of an operator whose stores hold several column families: one a batch
STORE_SCHEMA = "_metadata/schema"  # of a store without column families

# A ledger
IDENTITY, GENERATIONS, CLAIMS, EPOCHS = "identity.json", "generations", "claims", "epochs"
BEGUN, RULINGS, PROBE = "begun", "rulings", "probe"
TICKET = "ticket.json"  # of a run whose epochs begin and end in different processes, see `engine.relay`

# The in-flight log of a sink
LOGS, BACKLOG, DRAINED = "logs", "backlog", "drained"
DRAIN = "drain"  # the drainer's claims, decisions and rulings; runs register in the query's ledger alone

# Elsewhere
PRIVATE = "_penstock"  # ours, inside a folder that is not: a drop-in's ledger, what sinks keep beside their files
KEPT = f"{PRIVATE}/{STATE}"  # ours, there too: further names of state, one folder an epoch, see `log_repair`
SOURCE_IDS = f"{PRIVATE}/{SOURCES}"  # ours, in Spark's checkpoint of a query: what its positions belong to
SAVEPOINTS = "_savepoints"  # in the storage, beside the jobs: where savepoints go by default; no job has that name
SAVEPOINT = "_metadata"  # what makes a folder a savepoint
CANONICAL = "layout.json"  # what makes a folder the state of a canonical savepoint

_HISTORY = re.compile(r"^spark-[0-9a-f]{12}$")
_NUMBERED = re.compile(r"^(\d{10})\.json$")
_CHECKPOINT = re.compile(r"^chk-(?P<epoch>\d+)(?:\.failed-(?P<opened>\d+))?\.json$")
_CHECKPOINT_PATH = re.compile(r"^(?P<folder>.+)/chk-(?P<number>\d+)(?:\.json)?/?$")


def numbered(folder: str, number: int) -> str:
    """A file of a folder that counts: global checkpoints, restores, the in-flight log."""
    return f"{folder}/{number:010d}.json"


def numbers(names: Iterable[str]) -> list[int]:
    """The numbers of such files, in order. Files of other names are not ours."""
    return sorted(int(match[1]) for name in names if (match := _NUMBERED.match(name)))


def query_file(uid: str) -> str:
    return f"{QUERIES}/{uid}.json"


def query_uids(names: Iterable[str]) -> list[str]:
    """The uids of the files in `QUERIES`, in order."""
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def is_history(name: str) -> bool:
    return name == FIRST or _HISTORY.match(name) is not None


def history(token: str) -> str:
    """The name of a history that begins with a restore; `token` has 12 hexadecimal digits."""
    return f"{FIRST}-{token}"


def checkpoint_name(number: int | str) -> str:
    return f"chk-{number}"


def record_file(epoch: int, failed_at: int | None = None) -> str:
    """The record of an epoch, or of an attempt at it that failed, by the milliseconds at which it was opened."""
    failed = "" if failed_at is None else f".failed-{failed_at}"
    return f"{CHECKPOINTS}/{checkpoint_name(epoch)}{failed}.json"


def record_names(names: Iterable[str]) -> list[str]:
    """Those that are records, by epoch; of one epoch, failed attempts before the complete one."""
    matches = [match for match in map(_CHECKPOINT.match, names) if match]
    matches.sort(key=lambda match: (int(match["epoch"]), match["opened"] is None, int(match["opened"] or 0)))
    return [match.string for match in matches]


def is_failed(record: str) -> bool:
    return ".failed-" in record


def split_checkpoint(path: str) -> tuple[str, int] | None:
    """The folder and the number of a path that names a checkpoint, `…/chk-N` or its record; None for any other path."""
    match = _CHECKPOINT_PATH.match(path)
    return None if match is None else (match["folder"], int(match["number"]))


def split_query_checkpoints(folder: str) -> tuple[str, str] | None:
    """The job's folder and the query's uid of `STORAGE/JOB/QUERY/checkpoints`; None for any other folder."""
    if not folder.endswith(f"/{CHECKPOINTS}"):
        return None
    job, _, uid = folder.removesuffix(f"/{CHECKPOINTS}").rpartition("/")
    return job, uid


def offsets(epoch: int | str) -> str:
    return f"{OFFSETS}/{epoch}"


def commits(epoch: int | str) -> str:
    return f"{COMMITS}/{epoch}"


def source(index: int | str) -> str:
    return f"{SOURCES}/{index}"


def operator(number: int | str) -> str:
    return f"{STATE}/{number}"


def operator_description(number: int, batch: int | None = None) -> str:
    """Spark's description of an operator: the only one, or that of a batch."""
    return f"{operator(number)}/_metadata/metadata" if batch is None else f"{operator(number)}/{DESCRIPTIONS}/{batch}"


def saved_query(uid: str) -> str:
    return f"{QUERIES}/{uid}"


def saved_checkpoint(uid: str) -> str:
    return f"{saved_query(uid)}/{FIRST}"


def saved_state(uid: str) -> str:
    return f"{saved_query(uid)}/{STATE}"


def seal(kind: str, body: Mapping[str, Any]) -> bytes:
    text = _canonical(body)
    sealed = {"format": f"penstock/{kind}", "version": VERSION, "sha256": _digest(text), "body": body}
    return (_canonical(sealed) + "\n").encode()


def unseal(kind: str, data: bytes, where: str) -> dict[str, Any]:
    """The body of a sealed file, or the error that says what is wrong with it."""
    try:
        sealed = json.loads(data)
        format_, version, body = sealed["format"], sealed["version"], sealed["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(where, "it is not a whole ledger file") from error
    if not isinstance(version, int) or version < 1 or format_ != f"penstock/{kind}":
        raise _corrupt(where, f"it says {format_!r} where 'penstock/{kind}' belongs")
    refuse_newer(where, version, VERSION)
    if not isinstance(body, dict) or sealed.get("sha256") != _digest(_canonical(body)):
        raise _corrupt(where, "its checksum does not match its content")
    return body


def read_sealed(storage: Storage, kind: str, name: str) -> dict[str, Any] | None:
    """The body of a sealed file; None where there is none of that name."""
    data = storage.read(name)
    return None if data is None else unseal(kind, data, f"{storage.location}/{name}")


def refuse_newer(where: str, version: int, known: int) -> None:
    """`LedgerFromTheFuture` where a file has a newer version than this Penstock knows."""
    if version > known:
        raise LedgerFromTheFuture(
            f"{where} has version {version}; this Penstock reads up to {known}.",
            safe="nothing was read further, started or changed.",
            to_do="run this job with the Penstock that wrote it, or a newer one.",
        )


def known_fields(kind: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """What of a body are fields of the dataclass `kind`: a newer version may have written more."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in body.items() if key in known}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _corrupt(where: str, why: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"{where} cannot be trusted: {why}.",
        safe="nothing was committed, aborted or started because of it; what is prepared stays as it is.",
        to_do="restore the file from a copy. If it is a manifest and none of that epoch's transactions was committed,"
        " it may be deleted instead: the epoch then replays from the same positions.",
    )
