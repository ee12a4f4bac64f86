"""Kafka clients' error codes as Penstock's errors. Positive codes are Kafka's own, negative ones librdkafka's."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import errors
from penstock.kafka.librdkafka import Undelivered

# librdkafka
ALL_BROKERS_DOWN, AUTHENTICATION, SSL, RESOLVE, TRANSPORT = -187, -169, -181, -193, -195
TIMED_OUT, MSG_TIMED_OUT, QUEUE_FULL = -185, -192, -184
UNKNOWN_TOPIC, UNKNOWN_PARTITION, FATAL = -188, -190, -150
UNSUPPORTED_FEATURE, INVALID_DIFFERENT_RECORD = -165, -138
PURGED = (-152, -151)
# Kafka
UNKNOWN_TOPIC_OR_PARTITION, MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE = 3, 10, 18
COORDINATOR_LOADING, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND = 50, 51, 105
INVALID_TOPIC, INVALID_TIMESTAMP, POLICY_VIOLATION, INVALID_RECORD = 17, 32, 44, 87
UNSUPPORTED_SASL_MECHANISM, UNSUPPORTED_VERSION, UNSUPPORTED_FORMAT, UNSUPPORTED_COMPRESSION = 33, 35, 43, 76
DENIED = {29: "the topic", 30: "the group", 31: "the cluster", 53: "the transactional id", 58: "the connection"}

_TOO_LARGE = (MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE)
_AWAY = (ALL_BROKERS_DOWN, RESOLVE, TRANSPORT, TIMED_OUT, MSG_TIMED_OUT)
_SAFE = "nothing of this epoch is visible."
_RULES = (
    "see which rows break a rule of the topic, and filter them: with cleanup.policy=compact it takes no row without a"
    " key, message.timestamp.*.max.ms bound the column 'timestamp', and brokers may check schemas."
)
#: Rows that a topic never accepts, and what to do. One such row fails its whole batch.
_REFUSED = {
    INVALID_TOPIC: "correct the name; Kafka takes up to 249 letters, digits, dots, dashes and underscores.",
    INVALID_TIMESTAMP: "correct the column 'timestamp', or raise message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms of the topic; without the column, see that brokers and workers agree on the time.",
    POLICY_VIOLATION: "see the policy of the brokers that the rows break.",
    INVALID_RECORD: _RULES,
    INVALID_DIFFERENT_RECORD: _RULES,
}
_UNSUPPORTED = (
    UNSUPPORTED_SASL_MECHANISM, UNSUPPORTED_VERSION, UNSUPPORTED_FORMAT, UNSUPPORTED_COMPRESSION, UNSUPPORTED_FEATURE,
)  # fmt: skip


def unreachable(servers: str, reason: str, seconds: float) -> errors.SystemUnavailable:
    return errors.SystemUnavailable(
        f"The Kafka brokers at {servers} did not answer within {seconds:.1f} s: {reason}.",
        safe="what was committed stays committed; nothing else is visible.",
        to_do="check that the address is right and the brokers run; the job tries again by its restart strategy.",
    )


def denied(what: str, reason: str) -> errors.AccessDenied:
    return errors.AccessDenied(
        f"Kafka refused {what}: {reason}.",
        safe=_SAFE,
        to_do="check user, password and certificates in the sink's options, and the ACLs: WRITE and DESCRIBE on the "
        "topic, WRITE and DESCRIBE on transactional ids with the sink's prefix.",
    )


def missing(topic: str) -> errors.TopicMissing:
    return errors.TopicMissing(
        f"The topic {topic!r} does not exist.",
        safe=_SAFE,
        to_do=f"create it, or write KafkaSink({topic!r}, create_topic=True, partitions=…).",
    )


def from_code(
    code: int, text: str, *, servers: str, doing: str, topic: str = "", seconds: float = 0.0
) -> errors.PenstockError:
    """The error for a code that a client reported while `doing` something."""
    if code in DENIED:
        return denied(DENIED[code], text)
    if code in (AUTHENTICATION, SSL):
        return denied("the TLS connection" if code == SSL else "the connection", text)
    if code in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC):
        return missing(topic or "?")
    if code == UNKNOWN_PARTITION:
        return errors.DataError(
            f"A row names a partition that topic {topic!r} does not have.",
            to_do="correct the column 'partition', or add partitions to the topic.",
        )
    if code == INVALID_TRANSACTION_TIMEOUT:
        return errors.TimeoutsContradict(
            f"The broker refuses the sink's transaction timeout ({text}).",
            safe=_SAFE,
            to_do="lower transaction_timeout, or raise the brokers' transaction.max.timeout.ms.",
        )
    if code in _REFUSED:
        return errors.DataError(f"Topic {topic!r} never takes such rows: {text}.", to_do=_REFUSED[code])
    if code in _UNSUPPORTED:
        return errors.ConfigurationError(
            f"The Kafka brokers at {servers} cannot do what the sink asks of them while {doing}: {text} (code {code}).",
            safe=_SAFE,
            to_do="correct the sink's options (compression.type, sasl.mechanism), or upgrade the brokers.",
        )
    if code in _AWAY:
        return unreachable(servers, text, seconds)
    return errors.PreCommitFailed(
        f"Kafka failed while {doing}: {text} (code {code}).", to_do="nothing: the epoch replays."
    )


def too_large(size: int, topic: str, limit: str, text: str) -> errors.ValueTooLarge:
    return errors.ValueTooLarge(
        f"A row of {size:,} bytes for topic {topic!r} was refused: {text} ({limit}).",
        to_do="raise the topic's max.message.bytes (and the sink's option message.max.bytes if that is lower), "
        "lower the option batch.size to what the topic takes, or filter such rows.",
    )


def from_undelivered(
    failed: Sequence[Undelivered], *, total: int, servers: str, limit: str, seconds: float
) -> errors.PenstockError:
    """One error for all undelivered rows: the first real cause, how many, and the largest row."""
    # Rows purged because another row failed do not carry the cause.
    causes = [row for row in failed if row.code not in PURGED] or list(failed)
    first = causes[0]
    if first.code in _TOO_LARGE:
        largest = max((row for row in causes if row.code in _TOO_LARGE), key=lambda row: row.size)
        return too_large(largest.size, largest.topic, limit, largest.text)
    return from_code(
        first.code,
        f"{first.text}; {total:,} rows were not delivered to {first.topic!r}",
        servers=servers,
        doing=f"delivering rows to {first.topic!r}",
        topic=first.topic,
        seconds=seconds,
    )
