"""From where a job starts, where it is not its own checkpoint: a savepoint or a retained checkpoint of any job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Claim = Literal["claim", "no_claim"]


@dataclass(frozen=True)
class Recovery:
    """What `penstock run -s` and its companions, or their keys in a file, ask for.

    `restore_id` is made once for one wish to restore and is the same after every restart of the driver, so a job
    that has restored by this id already goes on from its own checkpoint. None: nobody made one, as with a path that
    stands in a file.
    """

    path: str | None = None
    allow_non_restored: bool = False
    claim: Claim = "no_claim"
    restore_id: str | None = None
    fork_name: str | None = None
    fork_suffix: str | None = None
