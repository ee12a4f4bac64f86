"""Files on HDFS that survive a power cut of the data nodes.

Closing a file on HDFS leaves its bytes to the operating systems of the data nodes, and neither pyarrow nor the library
under it can ask for more. The driver can, through its JVM: it opens the closed file for an append of nothing and asks
the data nodes to sync. That reaches a file's last block; blocks that were full before are synced when they are full
where `dfs.datanode.synconclose` is on.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import SystemUnavailable
from penstock.storage.hadoop import sync_closed


def hsync(address: str) -> None:
    """In the driver: the file is on the disks of its data nodes when this returns. In a task, which has no JVM, this
    does nothing: what tasks leave is synced by the driver before it decides."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return
    from py4j.protocol import Py4JJavaError

    jvm: Any = context._jvm
    jsc: Any = context._jsc
    try:
        sync_closed(jvm, jsc.hadoopConfiguration(), jvm.org.apache.hadoop.fs.Path(address))
    except Py4JJavaError as error:
        said = f"{error.java_exception.getClass().getName()}: {error.java_exception.getMessage()}"
        raise SystemUnavailable(
            f"{address} could not be synced: {said}.",
            safe="nothing was decided that relies on it.",
            to_do="see that HDFS is reachable and allows appends; the job tries again by its restart strategy.",
        ) from error
