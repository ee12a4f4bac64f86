"""Which files Spark's file source has noted for an epoch, and which of them it really reads.

Spark notes the files of an epoch in the checkpoint and lists them again when it reads them. One that is not there any
more it leaves out, with a warning in its log and nothing else. So before anything is written, both are compared.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.spark.verify import execution

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.storage.storage import Storage


def noted(notes: Storage, start: int, end: int) -> set[str]:
    """The files of the notes `start + 1` to `end`. Every tenth note is a `.compact` one that repeats all before it."""
    if end <= start:
        return set()
    names = set(notes.list(""))
    compact = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
    files: set[str] = set()
    wanted = set(range(start + 1, end + 1))
    while wanted:
        number = min(wanted)
        name = str(number)
        if name not in names:
            later = next((one for one in compact if one >= number), None)
            if later is None:
                return files  # Spark cannot read the epoch either, and says so
            name = f"{later}.compact"
        found = _entries(notes.read(name) or b"", wanted)
        files |= {path for path, _ in found}
        wanted -= {number, *(one for _, one in found)}
    return files


def _entries(data: bytes, wanted: set[int]) -> list[tuple[str, int]]:
    entries = [json.loads(line) for line in data.decode().splitlines()[1:] if line.strip()]
    return [(str(one["path"]), int(one["batchId"])) for one in entries if int(one["batchId"]) in wanted]


def listed(spark: SparkSession) -> set[str]:
    """The files that the epoch under way reads, from all file sources of its plan; called inside `foreachBatch`."""
    jvm: Any = spark._jvm
    leaves = execution(spark).lastExecution().logical().collectLeaves()
    files: set[str] = set()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "LogicalRelation" or not leaf.isStreaming():
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            # One call for all of them: each name by itself would be a round trip to the JVM.
            join = jvm.org.apache.hadoop.util.StringUtils.join
            files.update(str(join("\n", relation.location().inputFiles())).split("\n"))
    return files - {""}
