"""Delta and Iceberg tables, exactly once: tasks write data files, one commit of the table adds an epoch's."""

from penstock.sinks.tables.sink import DeltaSink, IcebergSink

__all__ = ["DeltaSink", "IcebergSink"]
