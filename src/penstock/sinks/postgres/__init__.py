"""Exactly once into PostgreSQL: prepared transactions, or staging tables moved in one transaction.

`writer` and `types` are a task's side; `dialect` is what `penstock.sinks.sql` needs to commit and to prove;
`connection` and `tables` (with the check before a start) serve both. `PostgresSink` is public."""

from penstock.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
