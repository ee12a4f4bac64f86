"""Whether topics can be read, asked before a job starts. Reads metadata only; creates nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import Finding
from penstock.errors import AccessDenied, PenstockError, SystemUnavailable, TopicMissing
from penstock.kafka.connections import librdkafka_admin

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Seconds for an answer that a query waits for.
PATIENCE = 10.0


def check_topics(
    settings: Mapping[str, str], topics: Sequence[str], pattern: str | None, uid: str, patience: float
) -> Sequence[Finding]:
    """`SystemUnavailable`, `AccessDenied` or `TopicMissing`; for a pattern that matches nothing yet, a finding."""
    heard: list[Any] = []
    client = librdkafka_admin(settings, heard.append)
    from confluent_kafka import KafkaException, TopicCollection

    try:
        listed = client.list_topics(timeout=patience).topics
        if pattern is not None:
            if not any(re.fullmatch(pattern, name) for name in listed):
                return (Finding(uid, f"no topic matches {pattern} yet"),)
            return ()
        # Asked by name as well: a topic this user may not see is absent from the list, but not missing.
        missing = [name for name in topics if name not in listed]
        if missing:
            for name, future in client.describe_topics(TopicCollection(missing), request_timeout=patience).items():
                _require_topic(name, future, settings["bootstrap.servers"])
    except KafkaException as error:
        client.poll(1.0)  # callbacks run only in here: what the client heard meanwhile may explain its silence
        raise translate_error(error.args[0], heard, settings["bootstrap.servers"]) from error
    return ()


def topic_ids(client: AdminClient, servers: str, names: Collection[str], pattern: str | None) -> dict[str, str]:
    """The id of each of these topics, and of those that match `pattern`. A topic that is not there is left out, and so
    are all where the brokers give topics no ids (before Kafka 2.8)."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    try:
        listed = client.list_topics(timeout=PATIENCE).topics if pattern is not None else {}
        wanted = {*names, *(name for name in listed if re.fullmatch(pattern or "", name))}
        found = {}
        answers = client.describe_topics(TopicCollection(sorted(wanted)), request_timeout=PATIENCE) if wanted else {}
        for name, future in answers.items():
            try:
                found[name] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    except KafkaException as error:
        raise translate_error(error.args[0], (), servers, safe="nothing was decided.") from error
    return {name: own for name, own in found.items() if own.strip("A")}  # 16 zero bytes: no id


def _require_topic(name: str, future: Any, servers: str) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        future.result()
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(
                f"There is no topic {name!r} at {servers}.", to_do="create the topic, or correct its name."
            ) from error
        raise


def translate_error(
    error: Any, heard: Sequence[Any], servers: str, *, safe: str = "nothing was started."
) -> PenstockError:
    """One of our errors for one of librdkafka's. A refused login shows only as silence of the request, so what the
    client `heard` meanwhile counts as well."""
    from confluent_kafka import KafkaError

    refused = {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
    for fault in (error, *heard):
        if fault.code() in refused:
            return AccessDenied(
                f"Kafka at {servers} refused: {fault.str()}.",
                safe=safe,
                to_do="check user, password and mechanism, and the right to read and describe the topics.",
            )
    detail = heard[-1].str() if heard else error.str()
    return SystemUnavailable(
        f"Kafka at {servers} does not answer: {detail}.",
        safe=safe,
        to_do="check that the brokers run, that this machine reaches them, and security.protocol.",
    )
