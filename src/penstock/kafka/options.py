"""Kafka client settings as users write them, in the spelling of the client that needs them.

Users write librdkafka's names or Java's, with or without `kafka.` in front, as they know them from Spark. Spark's
connector is Java; the driver's own small requests (checks, group offsets) go through librdkafka.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_SAME_IN_JAVA = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_CONNECTION = re.compile(r"^(security|sasl|ssl|socket|reconnect|broker)\.|^(client\.id|enable\.ssl\..*)$")
_JAVA_ONLY = re.compile(r"^(sasl\.(jaas|login|client|server)|ssl\.(truststore|keystore|protocol|enabled|provider))")
_JAAS_FIELD = r'\b{}\s*=\s*"((?:[^"\\]|\\.)*)"'


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
            client[name.removeprefix("kafka.")] = text
    return spark, client


def for_java(client: Mapping[str, str]) -> dict[str, str]:
    """The same settings for a Java client: user and password as JAAS, PEM files as key and trust stores.

    What Java has no equal for raises `ConfigurationError`; names that are the same in both pass.
    """
    settings = {_SAME_IN_JAVA.get(name, name): value for name, value in client.items()}
    if "security.protocol" in settings:
        settings["security.protocol"] = settings["security.protocol"].upper()
    _login_for_java(settings)
    _trust_for_java(settings)
    _key_for_java(settings)
    return settings


def _login_for_java(settings: dict[str, str]) -> None:
    user, password = settings.pop("sasl.username", None), settings.pop("sasl.password", None)
    if user is None or "sasl.jaas.config" in settings:
        return
    mechanism = settings.setdefault("sasl.mechanism", "PLAIN").upper()
    settings["sasl.mechanism"] = mechanism
    if mechanism not in _LOGIN:
        raise _untranslatable(f"sasl.username with the mechanism {mechanism}", "give kafka.sasl.jaas.config yourself")
    settings["sasl.jaas.config"] = (
        f'{_LOGIN[mechanism]} required username="{_escaped(user)}" password="{_escaped(password or "")}";'
    )


def _trust_for_java(settings: dict[str, str]) -> None:
    location, inline = settings.pop("ssl.ca.location", None), settings.pop("ssl.ca.pem", None)
    if location is not None and "ssl.truststore.location" not in settings:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.location"] = location
    elif inline is not None:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = inline
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        settings["ssl.endpoint.identification.algorithm"] = ""
    if settings.pop("enable.ssl.certificate.verification", "true").lower() == "false":
        raise _untranslatable("enable.ssl.certificate.verification=false", "give the authority in ssl.ca.location")


def _key_for_java(settings: dict[str, str]) -> None:
    certificate = _pem(settings, "ssl.certificate")
    key = _pem(settings, "ssl.key")
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise _untranslatable(
            "a client key without its certificate", "give ssl.certificate.location and ssl.key.location"
        )
    if "-----BEGIN RSA PRIVATE KEY" in key or "-----BEGIN EC PRIVATE KEY" in key:
        raise _untranslatable("a client key in PKCS#1", "convert it: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW")
    settings["ssl.keystore.type"] = "PEM"
    settings["ssl.keystore.certificate.chain"] = certificate
    settings["ssl.keystore.key"] = key


def _pem(settings: dict[str, str], name: str) -> str | None:
    """Inline PEM, read here from a file where one is named: executors then need no file of their own."""
    location, inline = settings.pop(f"{name}.location", None), settings.pop(f"{name}.pem", None)
    if inline is not None or location is None:
        return inline
    try:
        return Path(location).read_text()
    except OSError as error:
        raise ConfigurationError(
            f"{name}.location names a file that cannot be read: {error.strerror}.",
            safe="nothing was started.",
            to_do="correct the path, or grant this user the right to read it.",
        ) from error


def for_admin(servers: str, client: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka needs to connect, from either spelling; everything about reading is left out."""
    settings = {name: value for name, value in client.items() if _CONNECTION.match(name)}
    jaas = settings.get("sasl.jaas.config", "")
    for name in ("username", "password"):
        found = re.search(_JAAS_FIELD.format(name), jaas)
        if found:
            settings.setdefault(f"sasl.{name}", re.sub(r"\\(.)", r"\1", found[1]))
    if settings.get("ssl.truststore.type", "").upper() == "PEM":
        for java, ours in (
            ("ssl.truststore.location", "ssl.ca.location"),
            ("ssl.truststore.certificates", "ssl.ca.pem"),
        ):
            if java in settings:
                settings.setdefault(ours, settings[java])
    if "sasl.mechanism" in settings:
        settings["sasl.mechanisms"] = settings.pop("sasl.mechanism")
    elif "sasl.username" in settings:
        settings.setdefault("sasl.mechanisms", "PLAIN")
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    kept = {name: value for name, value in settings.items() if not _JAVA_ONLY.match(name)}
    return {"client.id": "penstock", **kept, "bootstrap.servers": servers}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _untranslatable(what: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(
        f"Spark's Kafka reader is a Java client and cannot be given {what}.",
        safe="nothing was started.",
        to_do=f"{to_do}.",
    )
