"""The Kafka sink over TLS with passwords and rights: it works, and every refusal has a name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import AccessDenied, PenstockError
from penstock.kafka.connections import Connections
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.pool import POOL
from penstock.sinks.kafka.sink import create_topic
from tests.support.servers.security import SecureBroker, SecurityFiles, make_security

pytest.importorskip("confluent_kafka")
pytest.importorskip("cryptography")

CONTEXT = CheckContext("j", 1, 60)
USER = "alice"


@dataclass
class Secure:
    broker: SecureBroker
    files: SecurityFiles
    topic: str

    def sink(self, **options: str) -> KafkaSink:
        return KafkaSink(self.topic, servers=self.broker.sasl_servers, options={**self.files.client(USER), **options})

    @property
    def password(self) -> str:
        return self.files.users[USER]


@pytest.fixture(scope="module")
def secure(sasl_broker: SecureBroker, security: SecurityFiles) -> Iterator[Secure]:
    connections = Connections(sasl_broker.servers, {})
    create_topic(connections, "safe", 2, 1)
    connections.close()
    yield Secure(sasl_broker, security, "safe")
    POOL.clear()


def scope() -> SinkScope:
    return SinkScope("j", uuid.uuid4().hex[:8], 1)


def test_tls_and_a_password(secure: Secure) -> None:
    sink, where = secure.sink(), scope()
    sink.check(CONTEXT, "u")
    committer = sink.open_committer(where)
    writer = sink.open_writer(WriterScope(where, 1, 0, 0, 0))
    writer.write(pa.record_batch({"value": ["x"]}))
    sealed = committer.seal([Committable("u", 0, 1, 0, writer.pre_commit())], Deadline(10))
    assert committer.commit(1, sealed, Deadline(10)) == {0: Outcome.COMMITTED}
    committer.close()
    assert secure.password not in repr(sealed)


def test_a_wrong_password(secure: Secure) -> None:
    sink = secure.sink(**{"sasl.password": "guess"})
    refused(lambda: sink.check(CONTEXT, "u"), "guess")
    refused(lambda: sink.open_writer(WriterScope(scope(), 1, 0, 0, 0)), "guess")
    committer = sink.open_committer(scope())
    refused(lambda: committer.abort_dangling([], Deadline(10)), "guess")
    committer.close()


def test_an_authority_nobody_knows(secure: Secure, tmp_path: Any) -> None:
    other = make_security(tmp_path, users={USER: "any"})
    sink = secure.sink(**{"ssl.ca.location": str(other.ca)})
    refused(lambda: sink.check(CONTEXT, "u"), secure.password)
    refused(lambda: sink.open_writer(WriterScope(scope(), 1, 0, 0, 0)), secure.password)


def test_plain_text_to_a_tls_port(secure: Secure) -> None:
    sink = KafkaSink(secure.topic, servers=secure.broker.sasl_servers)
    with pytest.raises(PenstockError):
        sink.check(CONTEXT, "u")


def test_a_right_that_is_missing(secure: Secure) -> None:
    from confluent_kafka import admin as ck

    client = ck.AdminClient({"bootstrap.servers": secure.broker.servers})
    connections = Connections(secure.broker.servers, {})
    create_topic(connections, "forbidden", 1, 1)
    connections.close()
    denied = ck.AclBinding(
        ck.ResourceType.TOPIC,
        "forbidden",
        ck.ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        ck.AclOperation.WRITE,
        ck.AclPermissionType.DENY,
    )
    for future in client.create_acls([denied]).values():
        future.result(10)
    sink = KafkaSink("forbidden", servers=secure.broker.sasl_servers, options=secure.files.client(USER))
    writer = sink.open_writer(WriterScope(scope(), 1, 0, 0, 0))

    def write() -> None:
        writer.write(pa.record_batch({"value": ["x"]}))
        writer.pre_commit()

    refused(write, secure.password)
    writer.abort()


def refused(work: Any, secret: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        work()
    assert secret not in str(caught.value)
    assert caught.value.to_do
