"""Kafka as an exactly-once target: transactions that outlive their writers.

`sink` says where rows go; `writer`, `pool`, `producer`, `messages`, `librdkafka` and `answers` are a task's
side; `committer`, `transactions` and `unsure` the driver's; `settings`, `columns`, `check` and `faults` serve both.
"""

from penstock.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
