"""The history of a run that never ran, as a run of so many epochs would have left it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from penstock.ops.process.registry import history_folder
from penstock.storage.local import create_own, own_folder
from tests.support.ui_client import checkpoint

_LINES = 2500  # in one file


def write_history(run: str, epochs: int, every: float = 5.0) -> None:
    """Below the registry's folder, in files of the size that a run writes."""
    folder = own_folder(history_folder(run))
    description = {"version": 1, "name": "payments", "directory": os.getcwd(), "folder": "/nowhere", "settings": []}
    with open(create_own(folder / "description.json"), "w", encoding="utf-8") as file:
        json.dump(description, file)
    begin = time.time() - every * epochs
    for first in range(1, epochs + 1, _LINES):
        name = f"epochs-{first // _LINES + 1:08d}.jsonl"
        with open(create_own(folder / name), "w", encoding="utf-8") as file:
            for epoch in range(first, min(first + _LINES, epochs + 1)):
                ended = begin + every * epoch
                times: dict[str, Any] = {"opened": ended - 0.5, "decided": ended - 0.15, "ended": ended}
                body = checkpoint(epoch, total_ms=400.0 + epoch % 90, **times)
                file.write(json.dumps({"time": ended, "event": "checkpoint", **body}) + "\n")
