"""Which classes a driver's JVM has loaded: asked of one that runs, loaded again in one that archives them.

A rehearsal runs what every job runs. What this job needs besides, its connectors above all, only its own JVM knows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_NAME = "javax.management.ObjectName"
_COMMANDS = "com.sun.management:type=DiagnosticCommand"
#: A line of Java's answer: lines that draw a tree, a name, the class's loader. Classes made at run time have a slash,
#: a plus or two dollar signs in their names.
_LINE = re.compile(r"^[|\s-]*(?P<name>[\w$.]+)/(?P<loader>0x[0-9a-f]+|null)(?:$|\s|\()")
_MADE = re.compile(r"\$\$|GeneratedClass|\$Proxy|^(?:java|jdk|sun)\.")


def loaded_classes() -> list[str]:
    """Of the JVM that this process talks to; empty where it does not say. Stops Java's threads for some 20 ms."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return []
    try:
        return names_in(_ask(gateway))
    except Exception as error:  # another Java, or one that is about to end: the archive holds a little less
        log.debug("Java does not say which classes it has loaded: %r", error)
        return []


def _ask(gateway: Any) -> str:
    """By Java's reflection: py4j calls no method of a class that is not public, whatever interface it has."""
    jvm = gateway.jvm

    def array(kind: Any, *values: Any) -> Any:
        made = gateway.new_array(kind, len(values))
        for place, value in enumerate(values):
            made[place] = value
        return made

    lang, found = jvm.java.lang, jvm.java.lang.Class.forName
    types = (found(name) for name in (_NAME, "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;"))
    invoke = found("javax.management.MBeanServer").getMethod("invoke", array(lang.Class, *types))
    server = lang.management.ManagementFactory.getPlatformMBeanServer()
    given = array(lang.Object, array(lang.String))
    kinds = array(lang.String, "[Ljava.lang.String;")
    name = jvm.javax.management.ObjectName(_COMMANDS)
    return str(invoke.invoke(server, array(lang.Object, name, "vmClassHierarchy", given, kinds)))


def names_in(answer: str) -> list[str]:
    """The classes in Java's answer that stand in some jar; not Java's own, which are in its own archive."""
    found = (_LINE.match(line) for line in answer.splitlines())
    names = {match["name"] for match in found if match is not None and match["loader"] != "null"}
    return sorted(name for name in names if not _MADE.search(name))


def load_classes(spark: SparkSession, names: Sequence[str]) -> None:
    """Load them, without running anything of theirs. One that is not on the class path is left out."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    loader = jvm.java.lang.ClassLoader.getSystemClassLoader()
    for name in names:
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            continue
