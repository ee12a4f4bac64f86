"""When Java compiles code with its better compiler, on a machine with few cores.

That compiler runs beside the program, which is free where cores are idle. On two or four cores it takes them from the
start itself: a third of a driver's processor time up to its first commit. So it begins later there, at three times the
calls. What a stream does for each row or batch reaches that within seconds; what only a start does, never.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_FEW_CORES = 4
_TIMES = 3
#: Java's own numbers, the same from Java 17 on. One that does not know them ignores them: Spark tells it to.
_DEFAULTS = {
    "Tier4InvocationThreshold": 5000,
    "Tier4MinInvocationThreshold": 600,
    "Tier4CompileThreshold": 15000,
    "Tier4BackEdgeThreshold": 40000,
}
_LENIENT = "-XX:+IgnoreUnrecognizedVMOptions"
#: Whoever speaks of compiling in one of these words is left alone.
_OWN_WORDS = ("Tier", "Compil", "-Xint", "-Xcomp", "JVMCI")


def compiler_options(options: Sequence[str], cores: int | None = None) -> list[str]:
    """Options for a JVM that is started with `options`; empty where there are many cores, or the user has their own."""
    said = [*options, os.environ.get("JDK_JAVA_OPTIONS", ""), os.environ.get("JAVA_TOOL_OPTIONS", "")]
    if _LENIENT not in options or any(word in one for one in said for word in _OWN_WORDS if one.startswith("-")):
        return []
    if (cores or _usable_cores()) > _FEW_CORES:
        return []
    return [f"-XX:{name}={number * _TIMES}" for name, number in _DEFAULTS.items()]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
