"""An archive of the classes that a driver's JVM loads, already parsed and checked, so that it starts in less time.

Java can write one when a program ends, and map it when the program starts again (class data sharing). It is made once,
by a `rehearsal` that a driver starts beside itself, where its user has asked for archives, when it has run for a while
without one, and kept in the user's cache. It only ever saves time: Java leaves aside an archive that does not fit its
own version or the jars, and a driver starts without one just as well. Whoever gives Java options about archives is left
alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.naming import user_cache
from penstock.storage.private import own_folder
from penstock.supply.java import JavaHome

#: Set for a rehearsal, whose JVM is to write an archive to this path at its end.
TARGET = "PENSTOCK_CLASS_ARCHIVE"
_OWN_WORDS = ("SharedArchive", "ArchiveClasses", "-Xshare", "SharedSpaces")
_QUIET = "-Xlog:disable"  # that an archive does not fit is no news; what users want logged comes behind it
_SIZES = ("-Xmx", "-Xms", "-Xss", "-Xlog")  # what an archive does not depend on
#: How code is compiled and garbage collected: the same classes, as long as references are as long as usual.
_ALIKE = re.compile(r"-XX:([+-]Use(Serial|Parallel|G1)GC|TieredStopAtLevel=\d|\+IgnoreUnrecognizedVMOptions)")
_LATER_SECONDS = 20.0  # a start is over by then, and who runs for moments only needs no archive
_AGAIN_SECONDS = 24 * 3600.0
_KEPT = 3  # for other Javas and Sparks of this user


def java_options(java: JavaHome, options: Sequence[str]) -> list[str]:
    """What lets a JVM that is started with `options` use the archive, or write it; empty where there is none."""
    if target := os.environ.get(TARGET):
        return [_QUIET, f"-XX:ArchiveClassesAtExit={target}"]
    found = archive_path(java, options)
    if not _is_free(options) or not _is_ours(found):
        return []
    return [_QUIET, "-Xshare:auto", f"-XX:SharedArchiveFile={found}"]


def distrust(java: JavaHome, options: Sequence[str]) -> None:
    """A JVM with the archive did not come up: no other one is to try it. Where the archive was not to blame, it is a
    pity."""
    with contextlib.suppress(OSError):
        archive_path(java, options).unlink()


def make_later(java: JavaHome, options: Sequence[str], jars: Sequence[str] = ()) -> None:
    """Where nobody has tried yet to make an archive for such a JVM: try, if this process lives that long. `jars`: the
    sets on its class path besides Spark."""
    target = archive_path(java, options)
    if TARGET in os.environ or not _is_free(options) or target.exists() or was_tried(target):
        return
    if any(folder.is_dir() and any(folder.iterdir()) for folder in map(Path, _class_path(options))):
        return  # Java makes none where classes may come from a folder
    timer = threading.Timer(_LATER_SECONDS, _make, (target, _vm_flags(options), jars))
    timer.daemon = True
    timer.start()


def archive_path(java: JavaHome, options: Sequence[str]) -> Path:
    """Where the archive for a JVM with these options is or will be. An updated Java or Spark has another one."""
    path = _class_path(options)
    folders = [Path(entry[:-2]) for entry in path if entry.endswith("/*")]
    ages = [folder.stat().st_mtime_ns for folder in folders if folder.is_dir()]
    known = [str(java.home), java.version, java.built, path, ages, _vm_flags(options)]
    return user_cache() / "java" / f"classes-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]}.jsa"


def tried_file(target: Path) -> Path:
    """There once somebody has tried to make `target`: some class paths and Javas allow no archive. In the end it says
    how long the archive is: Java would run over the end of one that was cut off."""
    return target.with_suffix(".tried")


def was_tried(target: Path) -> bool:
    """Whether somebody has tried lately. An attempt may also have failed because the machine had better things to do,
    so another day is worth another one."""
    with contextlib.suppress(OSError):
        return time.time() - tried_file(target).stat().st_mtime < _AGAIN_SECONDS
    return False


def loaded_file(target: Path) -> Path:
    """Names of classes that the archive is to hold besides what a rehearsal loads: one in each line."""
    return target.with_suffix(".loaded")


def keep(aside: Path, target: Path) -> None:
    """Put what a JVM has written in its place, in one step, and forget the oldest ones. It is on the disk before it has
    its name: Java could look through all of it at each start, but that takes a tenth of a second."""
    with aside.open("rb") as written:
        os.fsync(written.fileno())
    aside.chmod(stat.S_IRUSR)
    tried_file(target).write_text(str(aside.stat().st_size))
    aside.replace(target)
    others = sorted(target.parent.glob("classes-*.jsa"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for old in others[_KEPT:]:
        old.unlink(missing_ok=True)
        tried_file(old).unlink(missing_ok=True)


def _class_path(options: Sequence[str]) -> list[str]:
    return options[options.index("-cp") + 1].split(":") if "-cp" in options[:-1] else []


def _is_free(options: Sequence[str]) -> bool:
    """Whether nobody has said anything about archives."""
    said = [*options, os.environ.get("JDK_JAVA_OPTIONS", ""), os.environ.get("JAVA_TOOL_OPTIONS", "")]
    return not any(word in one for one in said for word in _OWN_WORDS)


def _is_ours(file: Path) -> bool:
    """Whether it is there, whole, and nobody else could have written it: what is in it becomes code."""
    with contextlib.suppress(OSError):
        found = file.lstat()
        private = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022
        return stat.S_ISREG(found.st_mode) and private and tried_file(file).read_text() == str(found.st_size)
    return False


def _vm_flags(options: Sequence[str]) -> list[str]:
    """Those that may change how classes are laid out: other than sizes, and none that a secret could stand in."""
    flags = {one for one in options if one.startswith("-X") and not one.startswith(_SIZES)}
    return sorted(one for one in flags if not _ALIKE.fullmatch(one))


def _make(target: Path, flags: Sequence[str], jars: Sequence[str]) -> None:
    """In a process that outlives this one, and gives way to all others."""
    from penstock.supply.loaded_classes import loaded_classes

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment["PENSTOCK_CACHE"] = str(user_cache())
    with contextlib.suppress(OSError):  # nowhere to write, or no process left: slower, not wrong
        own_folder(target.parent)
        loaded_file(target).write_text("\n".join(loaded_classes()))
        subprocess.Popen(
            [sys.executable, "-m", "penstock.spark.rehearsal", str(target), ",".join(jars), *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
