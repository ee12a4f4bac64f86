"""Files that Spark writes on a local disk, without a checksum file beside each.

Hadoop's local file system writes `.NAME.crc` beside `NAME`, and to give either its permissions it starts two processes:
eight for the two files with which Spark begins and ends a batch, half of them for checksums. Nobody needs those. What
Spark has half-written is told by its content, of what is decided the ledger has its own sealed copy, and state files
have checksums of Spark's. Checksum files that are there, from an earlier run, are still read and kept true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKSUM_FILES = "spark.penstock.checksum-files"
"""`false`, as it is in a session of ours: none are written. In all others nothing is changed."""


def apply_checksum_files(spark: SparkSession) -> None:
    """See that Spark writes such files, or none, as the session's settings say."""
    if spark.conf.get(CHECKSUM_FILES, "true") != "false":
        return
    jvm: Any = spark._jvm
    where = jvm.java.net.URI("file:///")
    # The one that Spark's own classes use, too: Hadoop keeps it.
    jvm.org.apache.hadoop.fs.FileSystem.get(where, spark._jsc.hadoopConfiguration()).setWriteChecksum(False)
