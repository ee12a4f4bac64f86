"""Which files of Spark's checkpoint make up the query after epoch N, and which do not.

    metadata            the query's id
    offsets/N-1, N      the positions before and after; Spark looks at both when it starts
    commits/N-1, N
    sources/…           what sources keep themselves; what they noted beyond N does no harm, they are asked from N on
    state/<op>/_metadata/…, _stateSchema/…   what the state is
    state/<op>/<part>[/<store>]/…   version N+1, and the versions it is built on

Of the state of a partition, version N+1 is the newest whole picture up to it (`.snapshot` with hashmap, `.zip` with
RocksDB) and the changes after that (`.delta`, `.changelog`). A RocksDB picture names the `SSTs` it consists of.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import TYPE_CHECKING

from penstock.errors import SavepointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.storage.tree import Tree

_VERSIONED = re.compile(r"^(?P<version>\d+)(?:_[0-9a-zA-Z-]+)*\.(?P<kind>delta|snapshot|zip|changelog)$")
_WHOLE = ("snapshot", "zip")


def needed(checkpoint: Tree, epoch: int) -> list[str]:
    """The names of all files that a copy of the checkpoint at `epoch` needs. Raises where it is not complete there."""
    present = checkpoint.files()
    log = [f"{kind}/{number}" for kind in ("offsets", "commits") for number in (epoch - 1, epoch) if number >= 0]
    for name in ("metadata", f"offsets/{epoch}", f"commits/{epoch}"):
        if name not in present:
            raise SavepointError(
                f"{checkpoint.location} has no complete epoch {epoch}: {name} is missing.",
                safe="nothing was changed.",
                to_do="name an epoch that is complete and still kept; `num_retained` says how many are.",
            )
    found = ["metadata", *(name for name in log if name in present)]
    found += [name for name in present if name.startswith("sources/")]
    found += _state(checkpoint, [name for name in present if name.startswith("state/")], epoch + 1)
    return found


def _state(checkpoint: Tree, names: Iterable[str], version: int) -> list[str]:
    stores: dict[str, list[str]] = {}
    found: list[str] = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if any(part.startswith("_") for part in folder.split("/")):  # descriptions and schemas
            if not (folder.endswith("/_metadata/v2") and last.isdigit() and int(last) >= version):
                found.append(name)
        elif folder.endswith("/SSTs"):
            stores.setdefault(folder.removesuffix("/SSTs"), []).append(f"SSTs/{last}")
        else:
            stores.setdefault(folder, []).append(last)
    for folder, files in sorted(stores.items()):
        found += [f"{folder}/{name}" for name in _store(checkpoint, folder, files, version)]
    return found


def _store(checkpoint: Tree, folder: str, files: list[str], version: int) -> list[str]:
    matches = [match for match in map(_VERSIONED.match, files) if match and int(match["version"]) <= version]
    if not matches:
        return []
    base = max((int(match["version"]) for match in matches if match["kind"] in _WHOLE), default=0)
    own = [
        match.string
        for match in matches
        if int(match["version"]) > base or (int(match["version"]) == base and match["kind"] in _WHOLE)
    ]
    if max(int(match["version"]) for match in matches) < version and base < version:
        newest = max(int(match["version"]) for match in matches)
        raise SavepointError(
            f"{checkpoint.location}/{folder} ends with version {newest}; version {version} is not there.",
            safe="nothing was changed.",
            to_do="name an epoch whose state is still kept; `num_retained` says how many are.",
        )
    tables = [name for name in files if name.startswith("SSTs/")]
    if tables:
        own += _tables(checkpoint, [f"{folder}/{name}" for name in own if name.endswith(".zip")], tables)
    return own


def _tables(checkpoint: Tree, pictures: Iterable[str], present: list[str]) -> list[str]:
    """The tables that the pictures name; all that are there where a picture cannot be read by us."""
    wanted: set[str] = set()
    for picture in pictures:
        data = checkpoint.storage.read(picture)
        listed = None if data is None else tables_of(data)
        if listed is None:
            return present
        wanted |= {f"SSTs/{name}" for name in listed}
    missing = wanted - set(present)
    if missing:
        raise FileNotFoundError(sorted(missing)[0])
    return sorted(wanted)


def tables_of(picture: bytes) -> set[str] | None:
    """The names of the SST files in a RocksDB picture's `metadata`; None where its format is not known."""
    try:
        with zipfile.ZipFile(io.BytesIO(picture)) as archive:
            version, _, body = archive.read("metadata").decode().partition("\n")
            if version not in ("v1", "v2"):
                return None
            parsed: Mapping[str, list[Mapping[str, str]]] = json.loads(body)
            return {one["dfsSstFileName"] for one in parsed.get("sstFiles") or []}
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
