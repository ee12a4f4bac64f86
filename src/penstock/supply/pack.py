"""The archive that executors of a cluster run out of: made here, unpacked by Spark in each executor's folder.

It holds a manifest, `penstock-pack.json`, which says for which platform and Python it was made, so that one which
cannot work is refused before anything is sent to a cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.caches import user_cache
from penstock.errors import ArchiveMismatch, ConfigurationError
from penstock.storage.private import create_own, own_folder
from penstock.supply.pack_files import (
    EXTRAS,
    INTERPRETER,
    Entry,
    extras_of,
    interpreter,
    job_modules,
    own_entries,
    packages,
    requirements,
)

MANIFEST = "penstock-pack.json"
FORMAT = 1
_COMPRESSION = 3  # twice as quick as the usual 9, and hardly larger
_KEPT = 3  # archives in the cache; each is a hundred megabytes
_MOST_MANIFEST = 1 << 20  # bytes

#: Python finds its library from where it lies; the system finds Python's shared library only if told.
_LAUNCHER = f"""#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 127
LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
unset PYTHONHOME
exec "$here/{INTERPRETER}" "$@"
"""


@dataclass(frozen=True)
class Pack:
    """An archive, and what its manifest says."""

    path: Path
    manifest: Mapping[str, Any]


def this_platform() -> str:
    """The system and processor that binaries are for, and the C library where it matters."""
    library, version = platform.libc_ver()
    return "-".join(filter(None, [sysconfig.get_platform(), library, version]))


def build(version: str, target: Path | None = None, script: Path | None = None, more: Sequence[str] = ()) -> Pack:
    """Write the archive of this environment, for the job in `script`, to `target`. Without `target` it goes into the
    user's cache, and one that is there and still true is used. `more` are distributions that no import tells of."""
    entries, names = _content(script, more)
    content = _fingerprint(entries)
    manifest = {
        "format": FORMAT,
        "penstock": version,
        "python": platform.python_version(),
        "platform": this_platform(),
        "distributions": sorted(names),
        "content": content,
    }
    if target is None:
        folder = own_folder(user_cache() / "packs")
        target = folder / f"penstock-{content[:24]}.tar.gz"
        if target.exists():
            os.utime(target)
            return Pack(target, manifest)
    _write(target, manifest, entries)
    _forget_old(target)
    return Pack(target.absolute(), manifest)


def read_manifest(archive: Path) -> dict[str, Any]:
    """The manifest, which is the archive's first file. `ArchiveMismatch` where there is none that can be read."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            first = opened.next()
            file = opened.extractfile(first) if first is not None and first.name == MANIFEST else None
            body = json.loads(file.read(_MOST_MANIFEST)) if file is not None else None
        if isinstance(body, dict) and isinstance(body.get("format"), int):
            return body
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"There is no archive {archive}.", safe="nothing was started.", to_do="make it: penstock pack -o FILE."
        ) from error
    except (OSError, tarfile.TarError, ValueError, EOFError) as error:
        raise _refused(archive, f"cannot be read ({type(error).__name__}: {error})") from error
    raise _refused(archive, "is none that penstock pack has made")


def require_fitting(archive: Path, version: str) -> Pack:
    """Refuse an archive whose Python, Penstock or platform is not this one's. The cluster's machines are taken to be
    like this one; which they are is seen when executors are asked."""
    manifest = read_manifest(archive)
    if manifest["format"] > FORMAT:
        raise _refused(archive, f"is of format {manifest['format']}, and this version reads {FORMAT}")
    python = platform.python_version_tuple()[:2]
    if tuple(str(manifest.get("python")).split(".")[:2]) != python:
        raise _refused(archive, f"holds Python {manifest.get('python')}, and the driver is {'.'.join(python)}")
    if manifest.get("penstock") != version:
        raise _refused(archive, f"holds Penstock {manifest.get('penstock')}, and the driver is {version}")
    wanted, given = sysconfig.get_platform(), str(manifest.get("platform"))
    if given != wanted and not given.startswith(f"{wanted}-"):
        raise _refused(archive, f"was made for {given}, and this machine is {wanted}")
    return Pack(archive.absolute(), manifest)


def _content(script: Path | None, more: Sequence[str]) -> tuple[list[Entry], set[str]]:
    own, imported = job_modules(script) if script is not None else (set[Path](), set[str]())
    extras = set(EXTRAS) if script is None else extras_of([script, *own])
    names = requirements(["penstock"], extras=extras) | requirements([*imported - {"penstock"}, *more])
    entries = dict((*interpreter(), *packages(sorted(names))))
    if script is not None:
        entries |= dict(own_entries(own, script))
    return sorted(entries.items()), names


def _fingerprint(entries: Iterable[Entry]) -> str:
    """Another text when a file has changed, as far as size and time tell."""
    known = hashlib.sha256(f"{FORMAT}\n{_LAUNCHER}\n{_COMPRESSION}".encode())
    for name, path in entries:
        found = path.stat()
        known.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return known.hexdigest()


def _write(target: Path, manifest: Mapping[str, Any], entries: Iterable[Entry]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with (
            open(create_own(aside), "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=_COMPRESSION) as archive,
        ):
            _add(archive, MANIFEST, json.dumps(manifest, indent=1).encode(), 0o644)
            _add(archive, "bin/python3", _LAUNCHER.encode(), 0o755)
            _add(archive, "bin/python", _LAUNCHER.encode(), 0o755)
            for name, path in entries:
                archive.add(path.resolve(), name, recursive=False, filter=_anonymous)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whose the files were here means nothing there. Their times stay: what is compiled is valid by them."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def _forget_old(target: Path) -> None:
    if target.parent != user_cache() / "packs":
        return
    with contextlib.suppress(OSError):
        found = sorted(target.parent.glob("penstock-*.tar.gz"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
        for old in found[_KEPT:]:
            old.unlink(missing_ok=True)


def _refused(archive: Path, why: str) -> ArchiveMismatch:
    return ArchiveMismatch(
        f"The archive {archive} {why}.",
        safe="nothing was started.",
        to_do="build it anew with penstock pack, in the driver's environment and on a machine like the workers.",
    )
