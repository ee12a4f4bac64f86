"""Whether a folder shows at once what other machines have created in it, told by how it is mounted.

A run finds out by a listing that a newer one has taken over, and the newer one, and Spark with it, by listings what was
decided and how far the log goes. A client of a network file system may answer from its cache, by default for up to a
minute. That cannot be tried from one machine, so the mount's own options are asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_CACHING = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")
_FRESH = frozenset({"noac", "actimeo=0", "acdirmax=0"})
"""Each of them makes a client ask the server for every listing. A kernel shows `actimeo=0` as what it stands for."""


@dataclass(frozen=True, slots=True)
class Mount:
    """What is mounted at `point`: the kind of file system, and its options."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def keeps_listings(self) -> bool:
        """Whether what it lists may be old. Of sshfs no option tells: its cache is in the program that serves it."""
        return self.kind in _CACHING and not self.options & _FRESH


def mount_of(folder: Path) -> Mount | None:
    """The mount that `folder`, which need not exist yet, is on; None where this system does not tell."""
    try:
        lines = _TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = folder.resolve()
    found: Mount | None = None
    for line in lines:
        mount = _parse(line)
        if mount is not None and path.is_relative_to(mount.point):
            # Of mounts over each other the last one is seen.
            found = mount if found is None or len(mount.point) >= len(found.point) else found
    return found


def _parse(line: str) -> Mount | None:
    """`36 35 98:0 / /mnt rw,noatime shared:1 - nfs4 server:/export rw,vers=4.2,acdirmax=60`"""
    own, _, rest = line.partition(" - ")
    fields, more = own.split(), rest.split()
    if len(fields) < 6 or len(more) < 3:
        return None
    point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(point, more[0], frozenset(more[2].split(",")))
