"""The settings that Spark fixes for a query in each `offsets/N`: read, and set anew in a copy.

    v1                      the version
    {"conf": {…}, …}        the batch's metadata, one line of JSON
    …                       an offset a source

Only the second line is looked at, so it does not matter how the sources write theirs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import LedgerCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.tree import Tree


def conf_of(checkpoint: Tree, batch: int) -> dict[str, str]:
    """The settings in `offsets/<batch>`."""
    return dict(_metadata(checkpoint, batch)[1]["conf"])


def set_conf(checkpoint: Tree, batch: int, changes: Mapping[str, str]) -> None:
    """Change settings in `offsets/<batch>`. Spark obeys them at the next start."""
    version, metadata, rest = _metadata(checkpoint, batch)
    if changes.items() <= metadata["conf"].items():
        return
    body = json.dumps({**metadata, "conf": {**metadata["conf"], **changes}}, separators=(",", ":"))
    checkpoint.put(f"offsets/{batch}", "\n".join([version, body, *rest]).encode())


def _metadata(checkpoint: Tree, batch: int) -> tuple[str, dict[str, Any], list[str]]:
    data = checkpoint.storage.read(f"offsets/{batch}")
    if data is None:
        raise LedgerCorrupt(
            f"{checkpoint.location} has no positions of batch {batch} (offsets/{batch}).",
            safe="nothing was changed.",
            to_do="name a batch that the checkpoint holds, or restore the file from a copy.",
        )
    try:
        version, line, *rest = data.decode().split("\n")
        metadata = json.loads(line)
        metadata["conf"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorrupt(
            f"Spark's checkpoint file {checkpoint.location}/offsets/{batch} cannot be read.",
            safe="nothing was changed.",
            to_do="restore the file from a copy of the checkpoint.",
        ) from error
    return version, metadata, rest
