"""Delta and Iceberg tables, exactly once: tasks write data files, one commit of the table adds an epoch's.

`writer`, `datafile`, `columns` are a task's side, `committer` the driver's; `target` is what both ask of a table
format, and `delta*` and `iceberg*` answer it.
"""

from penstock.sinks.tables.delta import DeltaSink
from penstock.sinks.tables.iceberg import IcebergSink

__all__ = ["DeltaSink", "IcebergSink"]
