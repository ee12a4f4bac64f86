"""Client settings: what the user may say, and what we set.

Users write librdkafka's names, or Spark's (`kafka.` in front, Java's names behind); `translation` has each client's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock import durations
from penstock.errors import ConfigurationError
from penstock.kafka.translation import CLIENT_ID, read_login, take_pem_trust_store
from penstock.secrets import mask_setting

#: What the protocol itself depends on; a user's value would break it.
OWNED = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "delivery.report.only.error",
        "dr_cb",
        "dr_msg_cb",
        "log.queue",
    }
)

#: Ours unless the user says otherwise.
DEFAULTS: Mapping[str, str] = {
    "client.id": CLIENT_ID,
    # Java's hash, so that a key lands where every other Spark or Flink writer puts it.
    "partitioner": "murmur2_random",
    # What a broker takes in one request at most is 100 MiB; the topic's own, lower limit is enforced by the broker.
    "message.max.bytes": "100000000",
    # An Arrow batch is thousands of rows: hold many of them, bounded by memory rather than by count.
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "262144",
    "batch.num.messages": "100000",
    # Rows come in large batches and pre_commit flushes, so waiting only delays small epochs.
    "linger.ms": "5",
    # A producer that catches up right after the driver's commit may meet the broker still writing markers.
    "retry.backoff.ms": "10",
    # How long one row may take to be delivered; also bounds pre_commit. Java's default.
    "delivery.timeout.ms": "120000",
    "socket.keepalive.enable": "true",
    # A misspelt topic is an error, not a new topic with the broker's defaults.
    "allow.auto.create.topics": "false",
}

_ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
}

#: Spark's own options of its Kafka reader: they go to Spark as they are. Everything else is meant for the client.
SPARK_OPTIONS = frozenset(
    {
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "groupIdPrefix",
        "includeHeaders",
    }
)


def transaction_seconds(value: str | float) -> float:
    """Of a transaction's timeout: a duration of more than nothing. Text that is a bare number is seconds here."""
    text = value.strip() if isinstance(value, str) else value
    bare = isinstance(text, str) and re.fullmatch(r"\d+(\.\d+)?", text)
    found = durations.seconds(float(text) if bare else text, "transaction_timeout")
    if not found:
        raise ConfigurationError(
            f"transaction_timeout={value!r} leaves no time for any transaction.",
            safe="nothing was started.",
            to_do="write a positive duration, such as '15min'.",
        )
    return found


def normalise(options: Mapping[str, Any]) -> dict[str, str]:
    """`options` in librdkafka's names, Spark's prefix and Java's JAAS line translated; refuses what we own."""
    plain: dict[str, str] = {}
    for name, value in options.items():
        key = name.removeprefix("kafka.")
        key = _ALIASES.get(key, key)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key in OWNED:
            raise ConfigurationError(
                f"The Kafka sink sets {key} itself; the option {name!r} would break exactly-once.",
                safe="nothing was started.",
                to_do="remove it; servers, transaction_timeout and transactional_id_prefix are arguments of KafkaSink.",
            )
        if key == "sasl.jaas.config":
            plain.update({f"sasl.{part}": value for part, value in read_login(text).items()})
        elif key == "ssl.endpoint.identification.algorithm":
            plain[key] = text or "none"
        else:
            plain[key] = text
    take_pem_trust_store(plain)
    return plain


def split_options(options: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """The options for Spark's reader, and those for the client without their `kafka.`."""
    spark: dict[str, str] = {}
    client: dict[str, str] = {}
    known = {name.lower(): name for name in SPARK_OPTIONS}
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name.lower() in known:
            spark[known[name.lower()]] = text
        else:
            client[name.lower().removeprefix("kafka.")] = text  # Spark takes names in any case, and the last counts
    return spark, client


def mask_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """`options` fit for a log: every secret replaced."""
    return {name: mask_setting(name, value) for name, value in sorted(options.items())}


def for_producer(servers: str, options: Mapping[str, str], transaction_timeout: float) -> dict[str, str]:
    """Everything a transactional librdkafka producer needs except its transactional id."""
    timeout_ms = int(transaction_timeout * 1000)
    merged = {**DEFAULTS, **options}
    # librdkafka refuses a delivery timeout beyond the transaction's.
    merged["delivery.timeout.ms"] = str(min(int(merged["delivery.timeout.ms"]), timeout_ms))
    return {
        **merged,
        "bootstrap.servers": servers,
        "transaction.timeout.ms": str(timeout_ms),
        "enable.idempotence": "true",
        "acks": "all",
        "delivery.report.only.error": "true",
    }
