"""Spark's checkpoint as a tree: which files make up the query after epoch N, and the settings that Spark fixed for it.

    metadata            the query's id
    offsets/N-1, N      the positions before and after; Spark looks at both when it starts
    commits/N-1, N
    sources/…           what sources keep themselves; what they noted beyond N does no harm, they are asked from N on
    _penstock/sources/… what the positions belong to
    state/<op>/_metadata/…, _stateSchema/…   what the state is
    state/<op>/<part>[/<store>]/…   version N+1, and the versions it is built on

Of the state of a partition, version N+1 is the newest whole picture up to it (`.snapshot` with hashmap, `.zip` with
RocksDB) and the changes after that (`.delta`, `.changelog`). A RocksDB picture names the `SSTs` it consists of.

In format 2 of the state every attempt writes files of its own, `N+1_<id>.zip`; the ids in `commits/N` say whose count,
and a changelog begins with the ids of the versions before it. Beside each file lies a checksum, `….crc`.

Of `offsets/N` only the settings are looked at, so it does not matter how the sources write their positions.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import StateIds
from penstock.checkpoint.layout import QUERY_ID, SOURCE_IDS, SOURCES, STATE
from penstock.checkpoint.spark_log import SparkLog, compact, join_offsets, split_offsets
from penstock.errors import LedgerCorrupt, SavepointError
from penstock.storage.storage import Storage
from penstock.storage.tree import Tree

_VERSIONED = re.compile(r"^(?P<version>\d+)(?:_[0-9a-zA-Z-]+)*\.(?P<kind>delta|snapshot|zip|changelog)$")
_WHOLE = ("snapshot", "zip")
_LZ4 = struct.Struct("<8sBIII")  # how a block of Java's begins: "LZ4Block", method, packed size, size, checksum
_LINEAGE = 1 << 17  # bytes, more than version and lineage of a changelog can be


def needed(checkpoint: Tree, epoch: int) -> list[str]:
    """The names of all files that a copy of the checkpoint at `epoch` needs. Raises where it is not complete there."""
    present = checkpoint.files()
    log = [kind(number) for kind in (layout.offsets, layout.commits) for number in (epoch - 1, epoch) if number >= 0]
    for name in (QUERY_ID, layout.offsets(epoch), layout.commits(epoch)):
        if name not in present:
            raise SavepointError(
                f"{checkpoint.location} has no complete epoch {epoch}: {name} is missing.",
                to_do="name an epoch that is complete and still kept; `num_retained` says how many are.",
            )
    names = [QUERY_ID, *(name for name in log if name in present)]
    names += [name for name in present if name.startswith((f"{SOURCES}/", f"{SOURCE_IDS}/"))]
    ids = SparkLog(checkpoint.storage).state_ids(epoch)
    names += _state(checkpoint, [name for name in present if name.startswith(f"{STATE}/")], epoch + 1, ids)
    return names


def lost_state(storage: Storage, epoch: int, sizes: Mapping[str, int], ids: StateIds | None = None) -> str | None:
    """What is missing, or there and empty, of the state that epoch `epoch` has left; None where all of it is there. An
    empty file is one that a power cut has taken: Spark writes none. `sizes`: the files below `STATE`."""
    stores: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        folder, _, last = name.rpartition("/")
        if any(part.startswith("_") for part in folder.split("/")):
            if not size and not _later(last, epoch):
                return name
        elif not folder.endswith("/SSTs"):
            stores.setdefault(folder, {})[last] = size
    for folder, files in sorted(stores.items()):
        counting = _counting(storage, folder, files, epoch + 1, ids)
        whole = {name: size and files.get(f"{name}.crc", 1) for name, size in files.items() if name in counting}
        if (files and not whole) or not _reaches(storage, folder, whole, epoch + 1, sizes):
            return f"version {epoch + 1} of {folder}"
    return None


def _counting(storage: Storage, folder: str, files: Iterable[str], version: int, ids: StateIds | None) -> set[str]:
    """Of a store's files those of the attempts that led to `version`. In format 1 each version has one; so do all count
    where a changelog cannot be read by us."""
    present = set(files)
    if ids is None or not any(map(_VERSIONED.match, present)):
        return present
    decided = {f"{version}_{one}" for partitions in ids.values() for stores in partitions for one in stores}
    stems = {name.rpartition(".")[0] for name in present} & decided
    for changelog in present & {f"{stem}.changelog" for stem in stems}:
        if (before := lineage_of(storage.read(f"{folder}/{changelog}") or b"")) is None:
            return present
        stems |= before
    return {name for name in present if name.rpartition(".")[0] in stems}


def lineage_of(changelog: bytes) -> set[str] | None:
    """The versions that a changelog of format 2 is built on, as `VERSION_ID`; None where it cannot be read."""
    import pyarrow as pa

    text, codec = b"", pa.Codec("lz4_raw")
    try:
        if not changelog.startswith(b"LZ4Block"):
            text = pa.CompressedInputStream(pa.BufferReader(changelog), "zstd").read(_LINEAGE)
        while changelog.startswith(b"LZ4Block") and len(text) < _LINEAGE:
            _, method, packed, size, _ = _LZ4.unpack_from(changelog)
            block, changelog = changelog[21 : 21 + packed], changelog[21 + packed :]
            text += block if method & 0xF0 == 0x10 else codec.decompress(block, size, asbytes=True)
        start = 2 + int.from_bytes(text[:2], "big")
        items = json.loads(text[start + 2 : start + 2 + int.from_bytes(text[start : start + 2], "big")])
        return {f"{item['version']}_{item['checkpointUniqueId']}" for item in items}
    except (ValueError, KeyError, TypeError, OSError, struct.error):
        return None


def _later(description: str, epoch: int) -> bool:
    """Whether a description or schema is of an epoch after `epoch`: those of all others have no number of one."""
    number = description.partition("_")[0]
    return number.isdigit() and int(number) > epoch


def _reaches(storage: Storage, folder: str, files: Mapping[str, int], version: int, sizes: Mapping[str, int]) -> bool:
    """Whether the store has whole files from some picture, or from its beginning, up to `version`. Spark takes an older
    picture where the newest one is of no use."""
    matches = [match for match in map(_VERSIONED.match, files) if match]
    whole: dict[int, list[re.Match[str]]] = {}
    for match in matches:
        if files[match.string]:
            whole.setdefault(int(match["version"]), []).append(match)
    for number in range(version, 0, -1):
        there = whole.get(number, [])
        pictures = [f"{folder}/{match.string}" for match in there if match["kind"] in _WHOLE]
        if any(_has_tables(storage, name, sizes) for name in pictures):
            return True
        if len(pictures) == len(there):
            return not matches  # else it is a folder in which Spark keeps no store
    return True


def _has_tables(storage: Storage, picture: str, sizes: Mapping[str, int]) -> bool:
    listed = tables_of(storage.read(picture) or b"") if picture.endswith(".zip") else None
    folder = picture.rpartition("/")[0]
    return listed is None or all(sizes.get(f"{folder}/SSTs/{name}") for name in listed)


def _state(checkpoint: Tree, names: Iterable[str], version: int, ids: StateIds | None) -> list[str]:
    stores: dict[str, list[str]] = {}
    found: list[str] = []
    for name in names:
        folder, _, last = name.rpartition("/")
        if any(part.startswith("_") for part in folder.split("/")):  # descriptions and schemas
            if not (folder.endswith(f"/{layout.DESCRIPTIONS}") and last.isdigit() and int(last) >= version):
                found.append(name)
        elif folder.endswith("/SSTs"):
            stores.setdefault(folder.removesuffix("/SSTs"), []).append(f"SSTs/{last}")
        else:
            stores.setdefault(folder, []).append(last)
    for folder, files in sorted(stores.items()):
        found += [f"{folder}/{name}" for name in _store(checkpoint, folder, files, version, ids)]
    return found


def _store(checkpoint: Tree, folder: str, files: list[str], version: int, ids: StateIds | None) -> list[str]:
    counting = _counting(checkpoint.storage, folder, files, version, ids)
    matches = [match for match in map(_VERSIONED.match, counting) if match and int(match["version"]) <= version]
    if not matches and (ids is None or not any(map(_VERSIONED.match, files))):
        return []
    base = max((int(match["version"]) for match in matches if match["kind"] in _WHOLE), default=0)
    names = [match.string for match in matches if int(match["version"]) >= base + (match["kind"] not in _WHOLE)]
    if (newest := max((int(match["version"]) for match in matches), default=0)) < version:
        raise SavepointError(
            f"{checkpoint.location}/{folder} ends with version {newest}; version {version} is not there.",
            to_do="name an epoch whose state is still kept; `num_retained` says how many are.",
        )
    names += [f"{name}.crc" for name in names if f"{name}.crc" in files]
    if tables := [name for name in files if name.startswith("SSTs/")]:
        names += _tables(checkpoint, [f"{folder}/{name}" for name in names if name.endswith(".zip")], tables)
    return names


def _tables(checkpoint: Tree, pictures: Iterable[str], present: list[str]) -> list[str]:
    """The tables that the pictures name; all that are there where a picture cannot be read by us."""
    wanted: set[str] = set()
    for picture in pictures:
        data = checkpoint.storage.read(picture)
        listed = None if data is None else tables_of(data)
        if listed is None:
            return present
        wanted |= {f"SSTs/{name}" for name in listed}
    if missing := wanted - set(present):
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
            return {file["dfsSstFileName"] for file in parsed.get("sstFiles") or []}
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None


def conf_of(checkpoint: Tree, batch: int) -> dict[str, str]:
    return dict(_offsets(checkpoint, batch)[1]["conf"])


def set_conf(checkpoint: Tree, batch: int, changes: Mapping[str, str]) -> None:
    """Change settings in `offsets/<batch>`. Spark obeys them at the next start."""
    version, metadata, rest = _offsets(checkpoint, batch)
    if changes.items() <= metadata["conf"].items():
        return
    body = compact({**metadata, "conf": {**metadata["conf"], **changes}})
    checkpoint.put(layout.offsets(batch), join_offsets(version, body, rest))


def _offsets(checkpoint: Tree, batch: int) -> tuple[str, dict[str, Any], list[str]]:
    data = checkpoint.storage.read(layout.offsets(batch))
    if data is None:
        raise LedgerCorrupt(
            f"{checkpoint.location} has no positions of batch {batch} ({layout.offsets(batch)}).",
            to_do="name a batch that the checkpoint holds, or restore the file from a copy.",
        )
    try:
        version, line, rest = split_offsets(data)
        metadata = json.loads(line)
        metadata["conf"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorrupt(
            f"Spark's checkpoint file {checkpoint.location}/{layout.offsets(batch)} cannot be read.",
            to_do="restore the file from a copy of the checkpoint.",
        ) from error
    return version, metadata, rest
