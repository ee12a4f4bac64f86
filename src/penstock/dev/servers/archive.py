"""An archive of the broker's classes, already parsed and checked, that saves it about a second at each start.

Java can write one when a program ends and map it when the program starts again (class data sharing). The first broker
that ends in good order writes it; all later ones use it. It only ever saves time: Java ignores an archive that does
not fit its own version or the jars, and a broker starts without one just as well.
"""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.jars import jar_folder

if TYPE_CHECKING:
    from penstock.spark.java import JavaHome


def archive_path(java: JavaHome) -> Path:
    """Where the archive for this Java is or will be: beside the jars it was made from, so it goes when they go."""
    built = java.home / "lib" / "modules"
    age = built.stat().st_mtime_ns if built.exists() else 0  # an updated Java keeps its path
    name = f"java-{java.version}-{zlib.crc32(f'{java.home}:{age}'.encode()):08x}.jsa"
    return jar_folder("kafka-broker") / name


def archive_options(java: JavaHome, written: Path | None = None) -> list[str]:
    """Arguments for Java: use the archive, or else write a new one to `written`, if given, at the end."""
    found = archive_path(java)
    if found.exists():
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={found}"]
    return [f"-XX:ArchiveClassesAtExit={written}"] if written is not None else []


def keep_archive(java: JavaHome, written: Path) -> None:
    """Put what a broker wrote at its end where the next one finds it. In one step: another may be starting."""
    with contextlib.suppress(OSError):  # none was written, or the folder is another user's: slower, not wrong
        written.replace(archive_path(java))
