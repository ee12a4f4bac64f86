"""Creating the sink's topic when the job starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.deadline import Deadline
from penstock.errors import ConfigurationError, PenstockError
from penstock.kafka import faults
from penstock.kafka.wire import wire

if TYPE_CHECKING:
    from penstock.kafka.lanes import Lanes

SECONDS = 30.0


def create(lanes: Lanes, topic: str, partitions: int | None, replication: int | None) -> bool:
    """Create `topic` unless it exists; whether it was created. None leaves a number to the broker's default."""
    wanted = {"num_partitions": partitions or -1, "replication_factor": replication or -1}
    return lanes.ask(lambda admin: _create(admin, topic, wanted), Deadline(SECONDS))


def _create(admin: Any, topic: str, wanted: dict[str, int]) -> bool:
    errors = wire().errors
    try:
        admin.create_topics({topic: wanted}, wait_for_metadata=True)
    except errors.TopicAlreadyExistsError:
        return False
    except (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError) as error:
        raise faults.denied(f"the creation of topic {topic!r}", type(error).__name__) from None
    except errors.KafkaError as error:
        if getattr(error, "retriable", False):
            raise faults.unreachable("the cluster", type(error).__name__, SECONDS) from None
        raise _impossible(topic, wanted, type(error).__name__) from None
    return True


def _impossible(topic: str, wanted: dict[str, int], reason: str) -> PenstockError:
    asked = ", ".join(f"{name}={'default' if number < 0 else number}" for name, number in wanted.items())
    return ConfigurationError(
        f"The topic {topic!r} cannot be created ({asked}): {reason}.",
        safe="nothing was started.",
        to_do="ask for a replication factor the cluster has brokers for, or create the topic yourself.",
    )
