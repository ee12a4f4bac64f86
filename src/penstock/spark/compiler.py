"""When the driver's JVM hands a method to its optimising compiler.

Java's second compiler (C2) takes up what was called a few thousand times. On a driver that is most of Spark's planning,
a little in every epoch and more than a thousand methods in the first minutes, and on few cores that is taken from the
rows. What every row passes through is called that often in a tenth of a second. So the mark is ten times as high: rows
find it as soon as before, and the rest stays with the first compiler's code until it is worth the work.
Whoever gives Java options about its compilers is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_LATER = (  # Java's own, ten times; loops within one call keep theirs
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
)
_OWN_WORDS = ("-XX:Tier", "Tiered", "CompileThreshold", "CompilationMode", "-Xint", "-Xcomp", "UseJVMCICompiler")


def java_options(options: Sequence[str]) -> list[str]:
    """What a JVM that is started with `options` is told besides; empty where somebody has said something about it."""
    said = [*options, os.environ.get("JDK_JAVA_OPTIONS", ""), os.environ.get("JAVA_TOOL_OPTIONS", "")]
    return [] if any(word in one for one in said for word in _OWN_WORDS) else list(_LATER)
