"""A throwaway certificate authority and passwords, so that a test can talk to a broker the way production does.

    security = make_security(folder, users={"alice": "secret"})
    broker = SecureBroker.start_with(security, folder / "kafka")
    Producer({"bootstrap.servers": broker.sasl_servers, **security.client("alice")})

The listener is SASL_SSL with PLAIN; certificates last a week and are good for 127.0.0.1 and localhost only.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dev.kafka import HOST, free_port
from penstock.kafka.settings import write_login
from tests.support.servers.broker import Broker

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_LIFETIME = datetime.timedelta(days=7)
_SKEW = datetime.timedelta(minutes=5)  # clocks of containers and hosts differ a little


@dataclass(frozen=True, slots=True)
class SecurityFiles:
    """What a SASL_SSL listener and its clients need."""

    ca: Path
    keystore: Path
    users: Mapping[str, str]

    def broker_properties(self) -> dict[str, str]:
        """Settings for the broker. Besides the listener they turn on access rights: whoever comes over the plain
        listener is a super user, and anything is allowed to the others until a right is written for it."""
        login = write_login("PLAIN", {f"user_{name}": password for name, password in self.users.items()})
        assert login is not None
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.client.auth": "none",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }

    def client(self, user: str | None = None, password: str | None = None) -> dict[str, str]:
        """Settings for a client, as librdkafka spells them; the first user, and the right password, unless told."""
        user = user if user is not None else next(iter(self.users))
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password if password is not None else self.users[user],
            "ssl.ca.location": str(self.ca),
        }


class SecureBroker(Broker):
    """A broker with a SASL_SSL listener beside the plain one."""

    def __init__(self, security: SecurityFiles, folder: Path, heap: str) -> None:
        super().__init__(folder, None, security.broker_properties(), heap)
        self.sasl_port = free_port()

    @classmethod
    def start_with(cls, security: SecurityFiles, folder: Path, *, heap: str = "1g") -> SecureBroker:
        return cls(security, folder, heap)._begin()

    @property
    def sasl_servers(self) -> str:
        """Bootstrap servers of the SASL_SSL listener."""
        return f"{HOST}:{self.sasl_port}"

    def _listeners(self) -> dict[str, int]:
        return {**super()._listeners(), "SASL_SSL": self.sasl_port}


def make_security(folder: Path, users: Mapping[str, str]) -> SecurityFiles:
    """Write a new authority and a broker certificate into `folder`; needs the `cryptography` package."""
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_certificate = _certificate("Penstock throwaway CA", authority, authority, is_ca=True)
    certificate = _certificate("localhost", server, authority, is_ca=False)
    files = SecurityFiles(ca=folder / "ca.pem", keystore=folder / "broker.pem", users=dict(users))
    files.ca.write_bytes(ca_certificate)
    with open(os.open(files.keystore, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_private(server) + certificate + ca_certificate)
    return files


def _certificate(name: str, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey, *, is_ca: bool) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called("Penstock throwaway CA"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not is_ca:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _private(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
