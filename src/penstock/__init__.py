"""Exactly-once for PySpark Structured Streaming: checkpoints you can steer, and sinks that commit in two phases.

Names are imported on first use: every Python worker of a job imports this package, and needs little of it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from penstock.checkpoint.decision import Committable, Outcome
    from penstock.config import Checkpoints, Mode, Retention, StateBackend
    from penstock.config.restart_strategy import RestartStrategy
    from penstock.contracts.guarantees import Guarantee
    from penstock.contracts.sink import Committer, Sink, TwoPhaseSink, Writer
    from penstock.contracts.source import Source
    from penstock.engine.preparation import Epoch
    from penstock.errors import PenstockError
    from penstock.job.dropin import exactly_once
    from penstock.job.job import CheckpointInfo, Job
    from penstock.job.stream_sink import StreamSink
    from penstock.sinks.files import FileSink
    from penstock.sinks.kafka import KafkaSink
    from penstock.sinks.mysql import MySqlSink
    from penstock.sinks.postgres import PostgresSink
    from penstock.sinks.redis import RedisSink
    from penstock.sinks.tables import DeltaSink, IcebergSink
    from penstock.sinks.write_ahead import WriteAheadSink
    from penstock.sources.datagen import DataGenSource
    from penstock.sources.files import FileSource
    from penstock.sources.kafka import KafkaSource
    from penstock.sources.socket import SocketSource
    from penstock.spark.parse import Json, parse
    from penstock.spark.registry import Avro, JsonSchema, Protobuf

__version__ = "0.1.0"

__all__ = [
    "Avro", "CheckpointInfo", "Checkpoints", "Committable", "Committer", "DataGenSource", "DeltaSink", "Epoch",
    "FileSink", "FileSource", "Guarantee", "IcebergSink", "Job", "Json", "JsonSchema", "KafkaSink", "KafkaSource",
    "Mode", "MySqlSink", "Outcome", "PenstockError", "PostgresSink", "Protobuf", "RedisSink", "RestartStrategy",
    "Retention", "Sink", "SocketSource", "Source", "StateBackend", "StreamSink", "TwoPhaseSink", "WriteAheadSink",
    "Writer", "exactly_once", "parse",
]  # fmt: skip

_MODULES = {
    "checkpoint.decision": "Committable Outcome", "config": "Checkpoints Mode Retention StateBackend",
    "config.restart_strategy": "RestartStrategy", "contracts.guarantees": "Guarantee",
    "contracts.sink": "Committer Sink TwoPhaseSink Writer", "contracts.source": "Source",
    "engine.preparation": "Epoch", "errors": "PenstockError", "job.dropin": "exactly_once",
    "job.job": "CheckpointInfo Job", "job.stream_sink": "StreamSink",
    "sinks.files": "FileSink", "sinks.kafka": "KafkaSink", "sinks.mysql": "MySqlSink",
    "sinks.postgres": "PostgresSink", "sinks.redis": "RedisSink", "sinks.tables": "DeltaSink IcebergSink",
    "sinks.write_ahead": "WriteAheadSink", "sources.datagen": "DataGenSource", "sources.files": "FileSource",
    "sources.kafka": "KafkaSource", "sources.socket": "SocketSource", "spark.parse": "Json parse",
    "spark.registry": "Avro JsonSchema Protobuf",
}  # fmt: skip
_WHERE = {name: f"penstock.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
