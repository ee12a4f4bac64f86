"""Kafka as a source: `source` says what is read, `check` sees that it can be, `group` shows lag tools how far it is."""

from penstock.sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
