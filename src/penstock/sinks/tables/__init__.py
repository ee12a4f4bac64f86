"""Delta and Iceberg tables, exactly once: tasks write data files, one commit of the table adds an epoch's.

`writer` and `columns` are a task's side, `committer` the driver's; `target` is what both ask of a table format, and
`delta` and `iceberg` implement it.
"""

from penstock.sinks.tables.sink import DeltaSink, IcebergSink

__all__ = ["DeltaSink", "IcebergSink"]
