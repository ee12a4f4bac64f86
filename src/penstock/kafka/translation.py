"""One connection in the spelling of each client: Java's, librdkafka's, kafka-python's.

Spark's connector is Java; writers and the driver's checks go through librdkafka; the driver's other requests, which end
transactions and tell groups their positions, through kafka-python. Nothing here connects.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

CLIENT_ID = "penstock"

_SAME_IN_JAVA = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanisms": "sasl.mechanism"}
_CONNECTION = re.compile(r"^(security|sasl|ssl|socket|reconnect|broker)\.|^(client\.id|enable\.ssl\..*)$")
_JAVA_ONLY = re.compile(r"^(sasl\.(jaas|login|client|server)|ssl\.(truststore|keystore|protocol|enabled|provider))")
_LOGIN_FIELD = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TRUST = {"ssl.truststore.location": "ssl.ca.location", "ssl.truststore.certificates": "ssl.ca.pem"}
_KAFKA_PYTHON = {
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
    line = write_login(mechanism, {"username": user, "password": password or ""})
    if line is None:
        raise _untranslatable(f"sasl.username with the mechanism {mechanism}", "give kafka.sasl.jaas.config yourself")
    settings["sasl.jaas.config"] = line


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


def for_librdkafka(servers: str, client: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka needs to connect, from either spelling; everything about reading is left out."""
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
    """`username` and `password` out of Java's login line (`sasl.jaas.config`), each where the line has it."""
    found: dict[str, str] = {}
    for name, value in _LOGIN_FIELD.findall(line):
        found.setdefault(name, re.sub(r"\\(.)", r"\1", value))
    return found


def write_login(mechanism: str, fields: Mapping[str, str]) -> str | None:
    """The line for a mechanism, with these fields; None for one that has no line of this kind."""
    if mechanism not in _LOGIN_MODULES:
        return None
    return f"{_LOGIN_MODULES[mechanism]} required {' '.join(_login_field(*field) for field in fields.items())};"


def _login_field(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def take_pem_trust_store(settings: dict[str, str]) -> None:
    """Java's trust store in librdkafka's names, where it is PEM; librdkafka reads no other kind."""
    if settings.get("ssl.truststore.type", "").upper() != "PEM":
        return
    del settings["ssl.truststore.type"]
    for java, ours in _TRUST.items():
        if java in settings:
            settings.setdefault(ours, settings.pop(java))


def for_kafka_python(servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The same connection in kafka-python's names: addresses, TLS and SASL; producer tuning has no counterpart."""
    admin: dict[str, Any] = {"bootstrap_servers": [part.strip() for part in servers.split(",")]}
    admin.update({_KAFKA_PYTHON[name]: value for name, value in options.items() if name in _KAFKA_PYTHON})
    admin.setdefault("client_id", CLIENT_ID)
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


def _untranslatable(what: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(
        f"Spark's Kafka reader is a Java client and cannot be given {what}.",
        safe="nothing was started.",
        to_do=f"{to_do}.",
    )
