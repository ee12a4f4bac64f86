"""One Spark session for all modules of one process that ask for the same one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_current: tuple[str, SparkSession, dict[str, str]] | None = None  # its name, it, and its settings when it was new


def shared_session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of that name, made the way a job makes it. The one that is there is used again, as this thread's and
    with the settings it was made with, whatever other modules did; any other that runs is ended."""
    global _current
    from pyspark.sql import SparkSession as Session

    from penstock.spark.session import session

    if _current is not None and _current[0] == name and _is_running(_current[1]):
        _, old, settings = _current
        Session._activeSession = old  # createDataFrame in another session moves it
        Session._get_j_spark_session_class(old._jvm).setActiveSession(old._jsparkSession)
        now = dict(old.conf.getAll)
        for key in now.keys() | settings.keys():
            if now.get(key) != settings.get(key) and old.conf.isModifiable(key):
                if key in settings:
                    old.conf.set(key, settings[key])
                else:
                    old.conf.unset(key)
        return old
    before = Session._instantiatedSession
    if before is not None and _is_running(before):
        before.stop()
    made = session(name, conf=dict(conf), jars=("spark-kafka",), local_storage=True)
    _current = (name, made, dict(made.conf.getAll))
    return made


def _is_running(session: SparkSession) -> bool:
    from pyspark.sql import SparkSession as Session

    return session is Session._instantiatedSession and session.sparkContext._jsc is not None
