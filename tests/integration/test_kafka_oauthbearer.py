"""Kafka with OAUTHBEARER: sink, driver, tools and source get tokens, renew them, and give each refusal a name."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Checkpoints, Job, KafkaSource
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import AccessDenied, ConfigurationError, SystemUnavailable
from penstock.kafka import tokens as kafka_tokens
from penstock.kafka.connections import AdminSender, Connections
from penstock.kafka.settings import for_librdkafka
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka.pool import POOL
from penstock.sinks.kafka.sink import create_topic
from tests.support.run_job import Kafka, Watched
from tests.support.servers.security import SecurityFiles
from tests.support.servers.token_server import SECRET, BearerBroker, TokenServer, bearer_broker

pytest.importorskip("confluent_kafka")
pytest.importorskip("cryptography")

CONTEXT = CheckContext("j", 1, 60)


@dataclass
class Bearer:
    tokens: TokenServer
    broker: BearerBroker
    ca: Path

    def options(self, **more: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{self.tokens.url}/token",
            "sasl.oauthbearer.client.id": "shop",
            "sasl.oauthbearer.client.secret": SECRET,
            "ssl.ca.location": str(self.ca),
            **more,
        }

    def file_options(self, file: Path) -> dict[str, str]:
        common = {n: v for n, v in self.options().items() if not n.startswith("sasl.oauthbearer.")}
        return {**common, "sasl.oauthbearer.method": "file", "sasl.oauthbearer.token.file": str(file)}

    def sink(self, options: dict[str, str] | None = None) -> KafkaSink:
        return KafkaSink("safe", servers=self.broker.sasl_servers, options=options or self.options())


@pytest.fixture(scope="module")
def server(security: SecurityFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bearer]:
    with bearer_broker(security, tmp_path_factory.mktemp("bearer-kafka")) as (tokens, broker):
        with closing(Connections(broker.servers, {})) as connections:
            create_topic(connections, "safe", 2, 1)
        yield Bearer(tokens, broker, security.ca)
        POOL.clear()


@pytest.fixture
def bearer(server: Bearer) -> Iterator[Bearer]:
    """Nothing is left of the tokens and producers of other tests."""
    server.tokens.reset()
    kafka_tokens._tokens.cache_clear()
    yield server
    POOL.clear()


def write_and_commit(sink: KafkaSink, meanwhile: Callable[[], None] = lambda: None) -> dict[int, Outcome]:
    where = SinkScope("j", uuid.uuid4().hex[:8], 1)
    with closing(sink.open_committer(where)) as committer:
        writer = sink.open_writer(WriterScope(where, 1, 0, 0, 0))
        writer.write(pa.record_batch({"value": ["x"]}))
        meanwhile()
        writer.write(pa.record_batch({"value": ["y"]}))
        sealed = committer.seal([Committable("u", 0, 2, 0, writer.pre_commit())], Deadline(20))
        return dict(committer.commit(1, sealed, Deadline(20)))


def test_client_credentials_reach_every_client_of_the_sink_and_no_log(
    bearer: Bearer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = bearer.sink()
    sink.check(CONTEXT, "u")
    assert write_and_commit(sink) == {0: Outcome.COMMITTED}
    assert len(bearer.tokens.given) == 1  # one identity of one process has one token
    shown = caplog.text + repr(sink)
    assert SECRET not in shown
    assert not any(token in shown for token in bearer.tokens.given)


def test_a_token_that_expires_in_the_middle_of_a_transaction_is_renewed(bearer: Bearer) -> None:
    bearer.tokens.lifetime = 4.0

    def until_two_tokens_have_expired() -> None:
        end = time.time() + 2 * bearer.tokens.lifetime
        while time.time() < end:
            threading.Event().wait(0.2)

    assert write_and_commit(bearer.sink(), until_two_tokens_have_expired) == {0: Outcome.COMMITTED}
    assert len(bearer.tokens.given) > 2


def test_a_refused_client_is_named_at_once_and_its_secret_is_not(bearer: Bearer) -> None:
    sink = bearer.sink(bearer.options(**{"sasl.oauthbearer.client.secret": "a-guess-of-somebody"}))
    began = time.monotonic()
    refused(lambda: sink.check(CONTEXT, "u"), "invalid_client")
    refused(lambda: sink.open_writer(WriterScope(SinkScope("j", "u", 1), 1, 0, 0, 0)), "invalid_client")
    refused(lambda: sink.open_committer(SinkScope("j", "u", 1)), "invalid_client")
    assert time.monotonic() - began < kafka_tokens._PATIENCE  # no retry


@pytest.mark.long  # the driver's admin clients are silent for ten seconds each, as with a wrong password
def test_a_token_for_another_audience_is_named_by_every_client(bearer: Bearer) -> None:
    bearer.tokens.audience = "elsewhere"
    sink, source = bearer.sink(), KafkaSource("safe", servers=bearer.broker.sasl_servers, options=bearer.options())
    refused(lambda: sink.check(CONTEXT, "u"), "invalid_token")
    refused(lambda: sink.open_writer(WriterScope(SinkScope("j", "u", 1), 1, 0, 0, 0)), "invalid_token")
    refused(lambda: source.check(CONTEXT, "u"), "invalid_token")
    with closing(sink.open_committer(SinkScope("j", "u", 1))) as committer:
        refused(lambda: committer.abort_dangling([], Deadline(10)), "invalid_token")


def test_a_token_of_another_issuer_is_named(bearer: Bearer) -> None:
    bearer.tokens.issuer = "https://elsewhere.example"
    refused(lambda: bearer.sink().check(CONTEXT, "u"), "invalid_token")


def test_an_endpoint_that_is_away_for_a_moment_is_asked_again(bearer: Bearer) -> None:
    bearer.tokens.status = 503
    threading.Timer(1.5, lambda: setattr(bearer.tokens, "status", 200)).start()
    bearer.sink().check(CONTEXT, "u")


def test_an_endpoint_that_stays_away_is_no_refusal(bearer: Bearer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tokens, "_PATIENCE", 1.0)
    bearer.tokens.status = 503
    with pytest.raises(SystemUnavailable) as caught:
        bearer.sink().check(CONTEXT, "u")
    assert "token endpoint" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_with_a_token_that_is_replaced(bearer: Bearer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    bearer.tokens.lifetime = 4.0
    file.write_text(bearer.tokens.token())

    def replace_twice() -> None:
        for _ in range(2):
            threading.Event().wait(3.0)
            file.write_text(bearer.tokens.token())

    assert write_and_commit(bearer.sink(bearer.file_options(file)), replace_twice) == {0: Outcome.COMMITTED}


def test_positions_are_published_with_a_token(bearer: Bearer) -> None:
    from kafka.errors import CoordinatorNotAvailableError

    connection = for_librdkafka(bearer.broker.sasl_servers, bearer.options())
    del connection["bootstrap.servers"], connection["client.id"]
    with closing(AdminSender(bearer.broker.sasl_servers, connection)) as sender:
        deadline = Deadline(30)
        while not deadline.passed():
            try:
                return sender("lag", {"safe": {"0": 1}})
            except CoordinatorNotAvailableError:  # the first group of a broker makes its log
                time.sleep(0.2)
    pytest.fail("the broker has no coordinator for groups")


@pytest.mark.parametrize("kind", ["oidc", "java", "file"])
def test_spark_reads_with_a_token(bearer: Bearer, tmp_path: Path, session: Any, kind: str) -> None:
    assert write_and_commit(bearer.sink()) == {0: Outcome.COMMITTED}
    options = bearer.options()
    if kind == "file":
        (tmp_path / "token").write_text(bearer.tokens.token())
        options = bearer.file_options(tmp_path / "token")
    elif kind == "java":
        module = "org.apache.kafka.common.security.oauthbearer"
        options = {
            "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.login.callback.handler.class": f"{module}.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.oauthbearer.token.endpoint.url": f"{bearer.tokens.url}/token",
            "kafka.sasl.jaas.config": f"{module}.OAuthBearerLoginModule required"
            f' clientId="shop" clientSecret="{SECRET}";',
            "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(bearer.ca),
        }  # fmt: skip
    source = KafkaSource("safe", servers=bearer.broker.sasl_servers, options=options)
    assert source.check(CONTEXT, "u") == ()
    source.load(session, "u")
    rows = session.read.format("kafka").options(**source.reader_options("u")).load()
    assert rows.count() >= 2


@pytest.mark.long
def test_a_job_in_real_time_whose_tokens_expire_meanwhile(
    bearer: Bearer, session: Any, storage: str, running: type[Watched]
) -> None:
    bearer.tokens.lifetime = 5.0
    kafka = Kafka(bearer.broker.servers)  # the plain listener
    topics, secure = (kafka.topic(1), kafka.topic(1)), bearer.options()
    servers = bearer.broker.sasl_servers
    job = Job("live", spark=session, checkpoints=Checkpoints(storage=storage, interval="1s", latency="50ms"))
    frame = job.read(KafkaSource(topics[0], servers=servers, options=secure), uid="in").select("value")
    job.write(frame, KafkaSink(topics[1], servers=servers, options=secure), uid="out")
    with running(job) as run:
        for part in range(4):
            kafka.send(topics[0], [(None, str(part * 10 + n)) for n in range(10)])
            run.wait(lambda: len(kafka.read(topics[1])) >= 10 * (part + 1), "the rows")  # noqa: B023
            threading.Event().wait(2.5)
        run.stop()
    assert sorted(int(value) for value in kafka.values(topics[1]).elements()) == list(range(40))


def test_msk_in_java_without_amazon_s_jar_is_named_before_the_start(session: Any) -> None:
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "aws_msk_iam", "sasl.oauthbearer.aws.region": "eu-west-1",
    }  # fmt: skip
    source = KafkaSource("orders", servers="b-1.shop.kafka.eu-west-1.amazonaws.com:9098", options=options)
    with pytest.raises(ConfigurationError) as caught:
        source.load(session, "u")
    assert "aws-msk-iam-auth" in str(caught.value)


def refused(work: Callable[[], Any], reason: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        work()
    text = str(caught.value)
    assert reason in text
    assert caught.value.to_do
    assert SECRET not in text
    assert "a-guess" not in text
