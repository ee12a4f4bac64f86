"""Client settings: what the user may say, what we set, and the same settings in both clients' spelling.

Users write librdkafka's names, or Spark's (`kafka.` in front, Java's names behind). Writers speak librdkafka, the
driver speaks kafka-python; `for_producer` and `for_admin` translate. Nothing here connects.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from penstock import durations
from penstock import secrets as secrecy
from penstock.errors import ConfigurationError

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
    "client.id": "penstock",
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
_TRUST = {"ssl.truststore.location": "ssl.ca.location", "ssl.truststore.certificates": "ssl.ca.pem"}
_JAAS = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ADMIN = {
    "client.id": "client_id",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}


def seconds(value: str | float) -> float:
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


def normalised(options: Mapping[str, Any]) -> dict[str, str]:
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
            found = dict(_JAAS.findall(text))
            plain.update({f"sasl.{part}": re.sub(r"\\(.)", r"\1", found[part]) for part in found})
        elif key == "ssl.endpoint.identification.algorithm":
            plain[key] = text or "none"
        else:
            plain[key] = text
    if plain.get("ssl.truststore.type", "").upper() == "PEM":
        del plain["ssl.truststore.type"]
        for java, ours in _TRUST.items():
            if java in plain:
                plain.setdefault(ours, plain.pop(java))
    return plain


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """`options` fit for a log: every secret replaced."""
    return {name: secrecy.shown(name, value) for name, value in sorted(options.items())}


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


def for_admin(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The same connection in kafka-python's names: addresses, TLS and SASL; producer tuning has no counterpart."""
    admin: dict[str, Any] = {"bootstrap_servers": [part.strip() for part in servers.split(",")]}
    admin.update({_ADMIN[name]: value for name, value in options.items() if name in _ADMIN})
    admin.setdefault("client_id", DEFAULTS["client.id"])
    protocol = options.get("security.protocol", "plaintext").upper()
    admin["security_protocol"] = protocol
    if protocol.startswith("SASL"):
        mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
        if mechanism == "OAUTHBEARER":
            raise ConfigurationError(
                "The driver cannot fetch OAUTHBEARER tokens yet.",
                safe="nothing was started.",
                to_do="use SCRAM-SHA-512, PLAIN over TLS, Kerberos or client certificates for this sink.",
            )
        admin["sasl_mechanism"] = mechanism
    if protocol.endswith("SSL"):
        hostname = options.get("ssl.endpoint.identification.algorithm", "https") != "none"
        admin["ssl_check_hostname"] = hostname
        if "ssl.ca.pem" in options or options.get("enable.ssl.certificate.verification") == "false":
            admin["ssl_context"] = _context(options, hostname)
    return admin


def _context(options: Mapping[str, str], hostname: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
    context.check_hostname = hostname
    if options.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "ssl.certificate.location" in options:
        context.load_cert_chain(
            options["ssl.certificate.location"], options.get("ssl.key.location"), options.get("ssl.key.password")
        )
    return context
