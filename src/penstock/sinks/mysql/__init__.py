"""Exactly once into MySQL and MariaDB: prepared XA transactions, or staging tables moved in one transaction.

`writer` and `types` are a task's side; `dialect` is what `penstock.sinks.sql` needs to commit and to prove; `session`
and `tables` (with the check before a start) serve both. `MySqlSink` is public."""

from penstock.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
