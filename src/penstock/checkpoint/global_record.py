"""The records of a job's global checkpoints, which name one decided epoch of every query.

<storage>/<job>/global/0000000012.json
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.ledger import unseal

if TYPE_CHECKING:
    from penstock.storage.storage import Storage

FOLDER = "global"
_NAME = re.compile(r"^(\d{10})\.json$")


def newest_record(storage: Storage) -> dict[str, Any] | None:
    """The newest global checkpoint of a job, verified; None where there is none. `storage` is the job's folder."""
    numbers = recorded(storage)
    data = storage.read(record_name(numbers[-1])) if numbers else None
    return None if data is None else unseal("global", data, f"{storage.location}/{record_name(numbers[-1])}")


def recorded(storage: Storage) -> list[int]:
    """The numbers of the global checkpoints that are there, oldest first."""
    return sorted(int(match[1]) for name in storage.list(FOLDER) if (match := _NAME.match(name)))


def record_name(number: int) -> str:
    return f"{FOLDER}/{number:010d}.json"
