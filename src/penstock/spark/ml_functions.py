"""Spark's functions for machine learning, registered when somebody imports `pyspark.ml`, not in every session.

A session looks for extensions on the class path, and finds one in Spark's own jars: `spark-mllib` registers three
functions, and needs Scala's reflection for it, which takes a second of each start. Here the session is made while its
thread sees no extensions, where that one is the only one there is; whoever imports `pyspark.ml` or `pyspark.mllib` has
the functions registered first, as they always were. With extensions or jars of the user's all is as Spark has it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("penstock")

_SERVICE = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_FUNCTIONS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
_SESSION = "org.apache.spark.sql.classic.SparkSession"
_PACKAGES = ("pyspark.ml", "pyspark.mllib")


def make_session(context: SparkContext, options: Mapping[str, str]) -> None:
    """Make the session that PySpark will find as the default one. Where something is unusual it is left to PySpark."""
    from py4j.clientserver import ClientServer

    # Only there a thread of Python's has one of Java's to itself, whose class loader is nobody else's.
    if not isinstance(context._gateway, ClientServer) or any(name in sys.modules for name in _PACKAGES):
        return
    if any(key.startswith("spark.sql.extensions") for key in options) or context.getConf().contains(
        "spark.sql.extensions"
    ):
        return
    jvm: Any = context._jvm
    kind = getattr(jvm, _SESSION)
    try:
        if kind.getDefaultSession().isDefined() or not _only_ours(jvm):
            return
        with _without_extensions(jvm):
            made = kind(context._jsc.sc(), dict(options))
        kind.setDefaultSession(made)
    except Exception as error:  # another Spark: PySpark makes the session then
        log.debug("the session is made by PySpark: %r", error)
        return
    sys.meta_path.insert(0, _Registering(jvm))


def _only_ours(jvm: Any) -> bool:
    """Whether `spark-mllib` has the only extension on the class path."""
    found = jvm.java.lang.Thread.currentThread().getContextClassLoader().getResources(_SERVICE)
    places = [str(one.toString()) for one in jvm.java.util.Collections.list(found)]  # its own class is not public
    return len(places) == 1 and "/spark-mllib_" in places[0]


@contextlib.contextmanager
def _without_extensions(jvm: Any) -> Iterator[None]:
    thread = jvm.java.lang.Thread.currentThread()
    usual = thread.getContextClassLoader()
    thread.setContextClassLoader(jvm.java.lang.ClassLoader.getPlatformClassLoader())
    try:
        yield
    finally:
        thread.setContextClassLoader(usual)


class _Registering(MetaPathFinder):
    """Registers the functions before the first import of one of the packages, and finds nothing itself."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            with contextlib.suppress(ValueError):  # another thread was here
                sys.meta_path.remove(self)
            try:
                self._jvm.java.lang.Class.forName(_FUNCTIONS)
            except Exception as error:  # a session that has ended
                log.debug("Spark's functions for machine learning are not registered: %r", error)
        return None
