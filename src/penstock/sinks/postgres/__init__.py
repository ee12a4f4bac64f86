"""PostgreSQL as an exactly-once target: prepared transactions, or staging tables moved in one transaction.

`sink` says where rows go; `writer`, `loader`, `types` are a task's side; `committer`, `moves`, `line` the driver's;
`server`, `catalog`, `check` and `faults` serve both. What is not particular to PostgreSQL is in `penstock.sinks.sql`.
"""

from penstock.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
