"""PostgreSQL as an exactly-once target: prepared transactions, or staging tables moved in one transaction.

`sink` describes and `check` asks the server; `writer`, `loader` and `types` are a task's side; `dialect` is what
`penstock.sinks.sql` needs to commit and to prove; `connection`, `catalog` and `faults` serve both. May import
`penstock.sinks.sql` and what that may. `PostgresSink` is public.
"""

from penstock.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
