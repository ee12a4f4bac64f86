"""Spark's name for a source, made from its uid."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

#: With this on, sources of a query may be reordered, added and removed; it has to be on from the first run.
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def source_name(uid: str) -> str:
    """`uid` where Spark takes it as it is (letters, digits, underscore), otherwise a readable form with a hash."""
    if re.fullmatch(r"[a-zA-Z0-9_]+", uid):
        return uid
    return re.sub(r"[^a-zA-Z0-9_]", "_", uid) + "_" + sha256(uid.encode()).hexdigest()[:8]


def reader(spark: SparkSession, uid: str) -> DataStreamReader:
    """A stream reader that carries the uid into the checkpoint, where the session allows it."""
    started = spark.readStream
    if str(spark.conf.get(EVOLUTION, "false")).lower() == "true":
        return started.name(source_name(uid))
    return started
