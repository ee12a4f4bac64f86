"""Spark Connect, which a job cannot run over."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from penstock.errors import ConnectUnsupported


def refuse_connect(session: Any = None, remote: str | None = None) -> None:
    """Raise where `session` is a Connect session, where PySpark is told to make such, or can make no other. `remote`
    is a setting that asks for one."""
    if session is not None and type(session).__module__.startswith("pyspark.sql.connect"):
        raise _refusal("The session is a Spark Connect session.")
    if session is not None:
        return
    asked = remote or os.environ.get("SPARK_REMOTE")
    if asked or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise _refusal("Spark Connect is asked for, by spark.remote or SPARK_REMOTE.")
    if importlib.util.find_spec("py4j") is None:
        raise _refusal("PySpark is installed without py4j, as pyspark-client is: it can only speak Spark Connect.")


def _refusal(happened: str) -> ConnectUnsupported:
    return ConnectUnsupported(
        f"{happened} Over Connect the driver is another process, which a client can neither ask for an epoch's"
        " positions and watermark nor hold at an epoch's end; so nothing could be promised.",
        safe="nothing was started.",
        to_do="run the job where the driver runs: with the whole pyspark package and a master (local[4], spark://…,"
        " yarn), by penstock run or spark-submit, and without SPARK_REMOTE.",
    )
