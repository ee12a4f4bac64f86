"""When the driver's JVM hands a method to its optimising compiler, on a machine with few cores.

Java's second compiler (C2) takes up what was called a few thousand times. On a driver that is most of Spark's planning,
a little in every epoch and more than a thousand methods in the first minutes. Where cores are idle that is free; on few
it is taken from the rows, and from the start itself. What every row passes through is called that often in a tenth of a
second. So the mark is three times as high there: rows find it as soon as before, and the rest stays with the first
compiler's code until it is worth the work. Whoever gives Java options about its compilers is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.processes import usable_cores

_FEW_CORES = 4
_LATER = (  # Java's own, three times; loops within one call keep theirs
    "-XX:Tier4InvocationThreshold=15000",
    "-XX:Tier4MinInvocationThreshold=1800",
    "-XX:Tier4CompileThreshold=45000",
)
_LENIENT = "-XX:+IgnoreUnrecognizedVMOptions"  # Spark says it; so a Java without these numbers starts all the same
_OWN_WORDS = ("Tier", "Compil", "-Xint", "-Xcomp", "JVMCI")


def java_options(options: Sequence[str], cores: int | None = None) -> list[str]:
    """What a JVM that is started with `options` is told besides; empty where there are many cores, or where somebody
    has said something about it."""
    variables = [os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")]
    said = [*options, *(word for text in variables for word in text.split())]
    if _LENIENT not in options or any(word in one for one in said if one.startswith("-") for word in _OWN_WORDS):
        return []
    return [] if (cores or usable_cores()) > _FEW_CORES else list(_LATER)
