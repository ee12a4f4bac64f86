"""Exactly once into MySQL and MariaDB: prepared XA transactions, or staging tables moved in one transaction."""

from penstock.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
