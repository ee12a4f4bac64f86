"""Kafka as an exactly-once target: transactions that outlive their writers.

`sink` says where rows go, `columns` what they are made of. `writer`, `pool`, `producer` and `messages` are a task's
side; `committer`, `transactions`, `evidence` and `check` the driver's. What the source needs too is in `kafka`.
"""

from penstock.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
