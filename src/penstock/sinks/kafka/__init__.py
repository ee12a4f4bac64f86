"""Kafka as an exactly-once target: transactions that outlive their writers.

`writer`, `pool` and `producer` are a task's side; `committer` and `transactions` the driver's.
"""

from penstock.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
