"""Client settings: what users may set, what Penstock sets, and the spelling of each client.

Users write librdkafka's names, or Spark's (`kafka.` in front of Java's names). Spark's connector is Java; writers and
the driver's checks use librdkafka; the driver's other requests (ending transactions, group positions) use kafka-python.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import deadline
from penstock.errors import ConfigurationError
from penstock.kafka import tokens

CLIENT_ID = "penstock"

_SAME_IN_JAVA = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}
_CONNECTION = re.compile(r"^(security|sasl|ssl|https|socket|reconnect|broker)\.|^(client\.id|enable\.ssl\..*)$")
_JAVA_ONLY = re.compile(r"^(sasl\.(jaas|login|client|server)|ssl\.(truststore|keystore|protocol|enabled|provider))")
_LOGIN_FIELD = re.compile(r'\b(username|password|clientId|clientSecret|scope)\s*=\s*"((?:[^"\\]|\\.)*)"')
#: The fields of OAUTHBEARER's login line, and the settings that they are here.
_CLIENT = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope", "tokenFile": "token.file"}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
#: What gets tokens in Java. Kafka's own reads a file once and never again; MSK's is in a jar of Amazon's.
LOGIN_HANDLER = "sasl.login.callback.handler.class"
FILE_HANDLER = "penstock.kafka.TokenFileLogin"
_HANDLERS = {
    "oidc": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler", "file": FILE_HANDLER,
    "aws_msk_iam": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
}  # fmt: skip
_TRUST = {"ssl.truststore.location": "ssl.ca.location", "ssl.truststore.certificates": "ssl.ca.pem"}
_KAFKA_PYTHON = {
    "client.id": "client_id", "sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name", "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile", "ssl.key.location": "ssl_keyfile", "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}  # fmt: skip

#: The protocol depends on these; a user's value would break it.
OWNED = frozenset((
    "bootstrap.servers", "metadata.broker.list", "transactional.id", "transaction.timeout.ms", "enable.idempotence",
    "acks", "request.required.acks", "delivery.report.only.error", "dr_cb", "dr_msg_cb", "log.queue",
))  # fmt: skip

#: Penstock's defaults; users may override them.
DEFAULTS: Mapping[str, str] = {
    "client.id": CLIENT_ID,
    # Java's hash, so that a key lands where every other Spark or Flink writer puts it.
    "partitioner": "murmur2_random",
    # A broker accepts requests of at most 100 MiB; it enforces the topic's own, lower limit.
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
    "sasl.mechanisms": "sasl.mechanism", "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms", "compression.codec": "compression.type",
}  # fmt: skip

#: Options of Spark's Kafka reader, passed on to Spark. All others are for the client.
SPARK_OPTIONS = frozenset((
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders",
))  # fmt: skip


def transaction_seconds(value: str | float) -> float:
    """The transaction timeout, a positive duration. Text that is a bare number means seconds here."""
    text = value.strip() if isinstance(value, str) else value
    bare = isinstance(text, str) and re.fullmatch(r"\d+(\.\d+)?", text)
    timeout = deadline.seconds(float(text) if bare else text, "transaction_timeout")
    if not timeout:
        raise ConfigurationError(
            f"transaction_timeout={value!r} leaves no time for any transaction.",
            to_do="write a positive duration, such as '15min'.",
        )
    return timeout


def normalise(options: Mapping[str, Any]) -> dict[str, str]:
    """`options` in librdkafka's names, with Spark's prefix and Java's JAAS line translated; refuses `OWNED` ones."""
    plain: dict[str, str] = {}
    for name, value in options.items():
        key = name.removeprefix("kafka.")
        key = _ALIASES.get(key, key)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key in OWNED:
            raise ConfigurationError(
                f"The Kafka sink sets {key} itself; the option {name!r} would break exactly-once.",
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


def for_java(client: Mapping[str, str]) -> dict[str, str]:
    """The same settings for a Java client; `ConfigurationError` for one without an equivalent."""
    settings = {_SAME_IN_JAVA.get(name, name): value for name, value in client.items()}
    if "security.protocol" in settings:
        settings["security.protocol"] = settings["security.protocol"].upper()
    _tokens_for_java(settings)
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
    line = write_login(mechanism, {"username": user, "password": password or ""})
    if line is None:
        raise _untranslatable(f"sasl.username with the mechanism {mechanism}", "give kafka.sasl.jaas.config yourself")
    settings["sasl.jaas.config"] = line


def _tokens_for_java(settings: dict[str, str]) -> None:
    bearer = settings.get("sasl.mechanism", "").upper() == "OAUTHBEARER"
    options, plain = tokens.split(settings)
    settings.clear()
    settings.update(plain)
    if (url := options.get("token.endpoint.url")) is not None:
        settings[f"{tokens.PREFIX}token.endpoint.url"] = url
    if not bearer or "sasl.jaas.config" in settings:
        return
    method = tokens.method_of(options)
    settings.setdefault(LOGIN_HANDLER, _HANDLERS[method])
    fields = {java: options[name] for java, name in _CLIENT.items() if name in options}
    fields |= {f"extension_{name}": value for name, value in tokens.extensions_of(options).items()}
    settings["sasl.jaas.config"] = str(write_login("OAUTHBEARER", fields))


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
        raise _untranslatable("half a client key pair", "set ssl.certificate.location and ssl.key.location")
    if "-----BEGIN RSA PRIVATE KEY" in key or "-----BEGIN EC PRIVATE KEY" in key:
        raise _untranslatable("a client key in PKCS#1", "convert it: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW")
    settings["ssl.keystore.type"] = "PEM"
    settings["ssl.keystore.certificate.chain"] = certificate
    settings["ssl.keystore.key"] = key


def _pem(settings: dict[str, str], name: str) -> str | None:
    """Inline PEM; a file is read here, so that executors need none."""
    location, inline = settings.pop(f"{name}.location", None), settings.pop(f"{name}.pem", None)
    if inline is not None or location is None:
        return inline
    try:
        return Path(location).read_text()
    except OSError as error:
        raise ConfigurationError(
            f"{name}.location names a file that cannot be read: {error.strerror}.",
            to_do="correct the path, or grant this user the right to read it.",
        ) from error


def for_librdkafka(servers: str, client: Mapping[str, str]) -> dict[str, str]:
    """The settings that librdkafka needs to connect, from either spelling; settings for reading are left out."""
    settings = {name: value for name, value in client.items() if _CONNECTION.match(name)}
    for name, value in read_login(settings.get("sasl.jaas.config", "")).items():
        settings.setdefault(f"sasl.{name}", value)
    take_pem_trust_store(settings)
    if "sasl.mechanism" in settings:
        settings["sasl.mechanisms"] = settings.pop("sasl.mechanism")
    elif "sasl.username" in settings:
        settings.setdefault("sasl.mechanisms", "PLAIN")
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    known = {name: value for name, value in settings.items() if not _JAVA_ONLY.match(name)}
    return {"client.id": CLIENT_ID, **known, "bootstrap.servers": servers}


def read_login(line: str) -> dict[str, str]:
    """What Java's login line (`sasl.jaas.config`) has of user and password, or of OAUTHBEARER's client: settings, whose
    names go on behind `sasl.`."""
    login: dict[str, str] = {}
    for name, value in _LOGIN_FIELD.findall(line):
        name = f"oauthbearer.{_CLIENT[name]}" if name in _CLIENT else name
        login.setdefault(name, re.sub(r"\\(.)", r"\1", value))
    return login


def write_login(mechanism: str, fields: Mapping[str, str]) -> str | None:
    """The login line for a mechanism with these fields; None for a mechanism without such a line."""
    if mechanism not in _LOGIN_MODULES:
        return None
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in fields.items()}
    login = " ".join(f'{name}="{value}"' for name, value in escaped.items())
    return f"{_LOGIN_MODULES[mechanism]} required {login};"


def take_pem_trust_store(settings: dict[str, str]) -> None:
    """Rename Java's trust store to librdkafka's settings if it is PEM, the only kind that librdkafka reads."""
    if settings.get("ssl.truststore.type", "").upper() != "PEM":
        return
    del settings["ssl.truststore.type"]
    for java, ours in _TRUST.items():
        if java in settings:
            settings.setdefault(ours, settings.pop(java))


def for_kafka_python(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The same connection in kafka-python's names: addresses, TLS and SASL."""
    admin: dict[str, Any] = {"bootstrap_servers": [part.strip() for part in servers.split(",")]}
    admin.update({_KAFKA_PYTHON[name]: value for name, value in options.items() if name in _KAFKA_PYTHON})
    admin.setdefault("client_id", CLIENT_ID)
    protocol = options.get("security.protocol", "plaintext").upper()
    admin["security_protocol"] = protocol
    if protocol.startswith("SASL"):
        mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
        admin["sasl_mechanism"] = mechanism
        if (bearer := tokens.tokens_of(options)) is not None:
            admin["sasl_oauth_token_provider"] = _provider(bearer)
    if protocol.endswith("SSL"):
        hostname = options.get("ssl.endpoint.identification.algorithm", "https") != "none"
        admin["ssl_check_hostname"] = hostname
        if "ssl.ca.pem" in options or options.get("enable.ssl.certificate.verification") == "false":
            admin["ssl_context"] = _context(options, hostname)
    return admin


def _provider(bearer: tokens.Tokens) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        token, extensions = staticmethod(lambda: bearer.get().value), staticmethod(lambda: bearer.extensions)

    bearer.get()  # its error has a name here
    return Provider()


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


def _untranslatable(what: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(f"Spark's Kafka reader is a Java client and cannot use {what}.", to_do=f"{to_do}.")
