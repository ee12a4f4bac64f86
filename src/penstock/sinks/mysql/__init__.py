"""Exactly once into MySQL and MariaDB: prepared XA transactions, or staging tables moved in one transaction.

`sink` describes and `check` asks the server; `writer`, `loading`, `encode` and `types` are a task's side; `dialect` is
what `penstock.sinks.sql` needs to commit and to prove; `session`, `tables` and `faults` serve both. May import
`penstock.sinks.sql` and what that may. `MySqlSink` is public."""

from penstock.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
