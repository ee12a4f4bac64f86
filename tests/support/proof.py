"""Results of long runs, kept in docs/proof for `make proof`: what ran, when, on what, and the numbers that it measured.

A file holds the last result of each of its parts, one a line; a run of some parts leaves the others as they are:

    {"histories": {"date": …, "command": "make simulate HISTORIES=100000 SEED=0", "ok": true, …}}
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "proof"
PACKAGES = ("penstock", "pyspark", "pyarrow", "confluent-kafka")

_clock = time.perf_counter  # the simulation has clocks of its own


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The results by part; empty where nothing ran."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(path: Path, part: str, result: Mapping[str, Any], *, parts: Collection[str] | None = None) -> None:
    """Put this result in place of the part's last one; of the others, those in `parts` stay, or all."""
    results = {name: last for name, last in read(path).items() if parts is None or name in parts}
    results[part] = dict(result)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(results.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(f"{{\n{lines}\n}}\n")
    aside.replace(path)


def circumstances(command: str, seed: int | None = None) -> dict[str, Any]:
    """What a result has besides its numbers."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "seed": seed,
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "cores": len(os.sched_getaffinity(0)),
    }


@contextmanager
def recorded(path: Path | None, part: str, command: str, seed: int | None = None) -> Iterator[dict[str, Any]]:
    """A run that puts its numbers, `ok` among them, into what this yields. A run that fails is kept as one that is not
    ok; one that is interrupted has no result. Without a path nothing is kept."""
    numbers: dict[str, Any] = {"ok": False}
    about, began = circumstances(command, seed), _clock()
    try:
        yield numbers
    except Exception as error:
        numbers |= {"ok": False, "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"}
        raise
    finally:
        if numbers["ok"] or len(numbers) > 1:
            numbers["seconds"] = round(_clock() - began, 1)
            if path is not None:
                keep(path, part, {**about, **numbers})


def _commit() -> str:
    """Of this checkout, with a sign where files differ from it; empty outside git."""
    said = []
    for command in (["git", "rev-parse", "--short=10", "HEAD"], ["git", "status", "--porcelain", "--", ".", ":!docs"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            return ""
        said.append(done.stdout.strip())
    return said[0] + (" with changes" if said[1] else "")
