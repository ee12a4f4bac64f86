"""The parts of kafka-python we speak through, imported once and late."""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace

from penstock.errors import MissingExtra


@functools.cache
def wire() -> SimpleNamespace:
    """Admin client, errors and requests; `MissingExtra` where kafka-python is not installed."""
    try:
        with warnings.catch_warnings():
            # It reads its message schemas through a deprecated function of the standard library.
            warnings.simplefilter("ignore", DeprecationWarning)
            from kafka import KafkaAdminClient, errors
            from kafka.admin import ConfigResource
            from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
            from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
            from kafka.protocol.metadata import FindCoordinatorRequest
            from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
            from kafka.record import MemoryRecords
    except ImportError as error:
        raise MissingExtra(
            f"Committing to Kafka needs kafka-python, which cannot be imported ({error}).",
            safe="nothing was started.",
            to_do="pip install 'penstock[kafka]' where the driver runs.",
        ) from error
    return SimpleNamespace(
        Admin=KafkaAdminClient,
        ConfigResource=ConfigResource,
        errors=errors,
        DescribeTransactions=DescribeTransactionsRequest,
        ListTransactions=ListTransactionsRequest,
        FindCoordinator=FindCoordinatorRequest,
        EndTxn=EndTxnRequest,
        InitProducerId=InitProducerIdRequest,
        Fetch=FetchRequest,
        ListOffsets=ListOffsetsRequest,
        MemoryRecords=MemoryRecords,
    )
