"""Exactly-once for PySpark Structured Streaming: checkpoints you can steer, and sinks that commit in two phases.

A name is imported when it is first used: every Python worker of a job imports this package, and needs little of it.
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
    from penstock.job.callbacks import CheckpointInfo
    from penstock.job.dropin import exactly_once
    from penstock.job.job import Job
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

__version__ = "0.1.0"

__all__ = [
    "CheckpointInfo",
    "Checkpoints",
    "Committable",
    "Committer",
    "DataGenSource",
    "DeltaSink",
    "Epoch",
    "FileSink",
    "FileSource",
    "Guarantee",
    "IcebergSink",
    "Job",
    "KafkaSink",
    "KafkaSource",
    "Mode",
    "MySqlSink",
    "Outcome",
    "PenstockError",
    "PostgresSink",
    "RedisSink",
    "RestartStrategy",
    "Retention",
    "Sink",
    "SocketSource",
    "Source",
    "StateBackend",
    "TwoPhaseSink",
    "WriteAheadSink",
    "Writer",
    "exactly_once",
]

_WHERE = {
    "CheckpointInfo": "penstock.job.callbacks",
    "Checkpoints": "penstock.config",
    "Committable": "penstock.checkpoint.decision",
    "Committer": "penstock.contracts.sink",
    "DataGenSource": "penstock.sources.datagen",
    "DeltaSink": "penstock.sinks.tables",
    "Epoch": "penstock.engine.preparation",
    "FileSink": "penstock.sinks.files",
    "FileSource": "penstock.sources.files",
    "Guarantee": "penstock.contracts.guarantees",
    "IcebergSink": "penstock.sinks.tables",
    "Job": "penstock.job.job",
    "KafkaSink": "penstock.sinks.kafka",
    "KafkaSource": "penstock.sources.kafka",
    "Mode": "penstock.config",
    "MySqlSink": "penstock.sinks.mysql",
    "Outcome": "penstock.checkpoint.decision",
    "PenstockError": "penstock.errors",
    "PostgresSink": "penstock.sinks.postgres",
    "RedisSink": "penstock.sinks.redis",
    "RestartStrategy": "penstock.config.restart_strategy",
    "Retention": "penstock.config",
    "Sink": "penstock.contracts.sink",
    "SocketSource": "penstock.sources.socket",
    "Source": "penstock.contracts.source",
    "StateBackend": "penstock.config",
    "TwoPhaseSink": "penstock.contracts.sink",
    "WriteAheadSink": "penstock.sinks.write_ahead",
    "Writer": "penstock.contracts.sink",
    "exactly_once": "penstock.job.dropin",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
