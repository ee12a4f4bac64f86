"""Exactly once into MySQL and MariaDB: prepared XA transactions, or staging tables moved in one transaction.

`sink` describes, `writer` loads, `committer` ends and proves what `xa` and `staged` left; `markers` holds the proof.
"""

from penstock.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
