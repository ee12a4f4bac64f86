"""Exactly once into PostgreSQL: prepared transactions, or staging tables moved in one transaction."""

from penstock.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
