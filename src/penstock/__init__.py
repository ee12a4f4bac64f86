"""Exactly-once for PySpark Structured Streaming: checkpoints you can steer, and sinks that commit in two phases."""

from penstock.config import Checkpoints, Mode, Retention, StateBackend
from penstock.dropin import exactly_once
from penstock.errors import PenstockError
from penstock.guarantees import Guarantee
from penstock.job import Epoch, Job
from penstock.runtime.callbacks import CheckpointInfo
from penstock.runtime.restart import RestartStrategy
from penstock.sinks.base import Committable, Committer, Outcome, Sink, TwoPhaseSink, Writer
from penstock.sinks.files import FileSink
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.mysql import MySqlSink
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.redis import RedisSink
from penstock.sinks.tables import DeltaSink, IcebergSink
from penstock.sinks.write_ahead import WriteAheadSink
from penstock.sources.base import Source
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
