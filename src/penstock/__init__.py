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
from penstock.sources.base import Source
from penstock.sources.datagen import DataGenSource
from penstock.sources.kafka import KafkaSource

__version__ = "0.1.0"

__all__ = [
    "CheckpointInfo",
    "Checkpoints",
    "Committable",
    "Committer",
    "DataGenSource",
    "Epoch",
    "FileSink",
    "Guarantee",
    "Job",
    "KafkaSink",
    "KafkaSource",
    "Mode",
    "Outcome",
    "PenstockError",
    "RestartStrategy",
    "Retention",
    "Sink",
    "Source",
    "StateBackend",
    "TwoPhaseSink",
    "Writer",
    "exactly_once",
]
