"""What must hold before a job may write to Kafka, asked from the cluster; and its topic, made where it is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PenstockError, TimeoutsContradict
from penstock.kafka import errors
from penstock.kafka.connections import kafka_python

if TYPE_CHECKING:
    from penstock.contracts.sink import CheckContext
    from penstock.kafka.connections import Connections

SECONDS = 10.0
CREATE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cluster allows; None where it does not say (a right may be missing)."""

    max_transaction_timeout: float | None = None
    replicas: int | None = None
    min_in_sync: int | None = None
    max_message_bytes: int | None = None


def timeouts(context: CheckContext, transaction_timeout: float) -> None:
    """An epoch must fit into a transaction: it is open from the first row to the commit."""
    needed = context.interval_seconds + context.timeout_seconds
    if transaction_timeout <= needed:
        raise TimeoutsContradict(
            f"transaction_timeout is {transaction_timeout:g} s, but an epoch may take {needed:g} s: the interval of "
            f"{context.interval_seconds:g} s and the checkpoint timeout of {context.timeout_seconds:g} s.",
            safe="nothing was started.",
            to_do="raise transaction_timeout above that sum, or lower the checkpoint timeout.",
        )


def limits(connections: Connections, topic: str | None) -> Limits:
    """The cluster's numbers. What may not be read is left out: the broker will enforce it anyway."""
    deadline = Deadline(SECONDS)
    broker = connections.ask(lambda admin: _config(admin, "BROKER", None, "transaction.max.timeout.ms"), deadline)
    most = broker.get("transaction.max.timeout.ms")
    if topic is None:
        return Limits(most / 1000 if most else None)
    found = connections.ask(
        lambda admin: _config(admin, "TOPIC", topic, "min.insync.replicas", "max.message.bytes"), deadline
    )
    return Limits(
        most / 1000 if most else None,
        connections.ask(lambda admin: _replicas(admin, topic), deadline),
        found.get("min.insync.replicas"),
        found.get("max.message.bytes"),
    )


def broker_limit(transaction_timeout: float, most: float | None) -> None:
    if most is not None and transaction_timeout > most:
        raise TimeoutsContradict(
            f"transaction_timeout is {transaction_timeout:g} s, but the brokers allow {most:g} s at most "
            f"(transaction.max.timeout.ms={most * 1000:.0f}).",
            safe="nothing was started.",
            to_do=f"set transaction_timeout='{most:g}s' or less, or raise transaction.max.timeout.ms on the brokers.",
        )


def warnings(topic: str, found: Limits, batch_bytes: int) -> list[str]:
    """What works but may lose or refuse rows later."""
    texts = []
    if found.replicas == 1:
        texts.append(f"topic {topic!r} has replication factor 1: rows are lost with its one broker's disk")
    elif found.min_in_sync == 1 and found.replicas is not None:
        texts.append(
            f"topic {topic!r} has {found.replicas} replicas but min.insync.replicas=1: rows confirmed by a single "
            "broker can be lost with it; 2 is usual"
        )
    if found.max_message_bytes is not None and found.max_message_bytes < batch_bytes:
        texts.append(
            f"topic {topic!r} takes {found.max_message_bytes:,} bytes a batch, the sink sends up to {batch_bytes:,}: "
            f"set the option batch.size to {found.max_message_bytes} or less"
        )
    return texts


def _config(admin: Any, kind: str, name: str | None, *keys: str) -> dict[str, int]:
    if name is None:
        name = str(next(iter(admin._manager.cluster.brokers())).node_id)
    try:
        answer = admin.describe_configs([kafka_python().ConfigResource(kind, name, list(keys))], config_filter="all")
    except kafka_python().errors.KafkaError:
        return {}
    values = next(iter(next(iter(answer.values())).values()))
    return {key: int(values[key]["value"]) for key in keys if key in values}


def _replicas(admin: Any, topic: str) -> int | None:
    try:
        parts = admin.describe_topics([topic])[0]["partitions"]
    except kafka_python().errors.KafkaError:
        return None
    return min((len(part["replica_nodes"]) for part in parts), default=None)


def create_topic(connections: Connections, topic: str, partitions: int | None, replication: int | None) -> bool:
    """Create `topic` unless it exists; whether it was created. None leaves a number to the broker's default."""
    wanted = {"num_partitions": partitions or -1, "replication_factor": replication or -1}
    return connections.ask(lambda admin: _create(admin, topic, wanted), Deadline(CREATE_SECONDS))


def _create(admin: Any, topic: str, wanted: dict[str, int]) -> bool:
    kafka_errors = kafka_python().errors
    try:
        admin.create_topics({topic: wanted}, wait_for_metadata=True)
    except kafka_errors.TopicAlreadyExistsError:
        return False
    except (kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError) as error:
        raise errors.denied(f"the creation of topic {topic!r}", type(error).__name__) from None
    except kafka_errors.KafkaError as error:
        if getattr(error, "retriable", False):
            raise errors.unreachable("the cluster", type(error).__name__, CREATE_SECONDS) from None
        raise _impossible(topic, wanted, type(error).__name__) from None
    return True


def _impossible(topic: str, wanted: dict[str, int], reason: str) -> PenstockError:
    asked = ", ".join(f"{name}={'default' if number < 0 else number}" for name, number in wanted.items())
    return ConfigurationError(
        f"The topic {topic!r} cannot be created ({asked}): {reason}.",
        safe="nothing was started.",
        to_do="ask for a replication factor the cluster has brokers for, or create the topic yourself.",
    )
