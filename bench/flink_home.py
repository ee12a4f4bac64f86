"""Flink as its Python package brings it, in the user's cache: fetched once, by whoever first needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.storage.local import only_one

VERSION = "2.2.0"
PACKAGES = (f"apache-flink=={VERSION}", f"apache-flink-libraries=={VERSION}")
_SECONDS = 1500.0  # 230 MB over a slow line


def bring_flink() -> Path:
    """Its home: `bin`, `lib`, `conf`. Nothing that its Python package depends on comes with it: whoever uses it starts
    Java programs and writes SQL. Raises `DevelopmentError` where it is not there and cannot be fetched."""
    place = user_cache() / f"flink-{VERSION}"
    home = place / "pyflink"
    if not _complete(home):
        place.parent.mkdir(parents=True, exist_ok=True)
        with only_one(place.with_name(f"{place.name}.lock")):
            if not _complete(home):  # another process may have brought it while this one waited
                _bring(place)
    for program in (home / "bin").glob("*"):
        program.chmod(program.stat().st_mode | 0o111)
    return home


def _complete(home: Path) -> bool:
    return (home / "bin" / "flink").is_file()


def _bring(place: Path) -> None:
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(aside), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        shutil.rmtree(aside, ignore_errors=True)
        raise DevelopmentError(
            f"Flink {VERSION} cannot be installed: {done.stderr.strip()[-500:]}",
            safe="The cache is unchanged.",
            to_do="See that pip reaches a package index that has apache-flink, then try again.",
        )
    shutil.rmtree(place, ignore_errors=True)
    aside.rename(place)
