"""Options in every spelling users have for them, and secrets that stay secret."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from penstock.errors import ConfigurationError, MissingExtra
from penstock.kafka import settings
from penstock.kafka.connections import Connections
from penstock.kafka.settings import for_kafka_python
from penstock.sinks.kafka import KafkaSink

SASL = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ana",
    "sasl.password": "hunter2",
    "ssl.ca.location": "/ca.pem",
}


@pytest.mark.parametrize(
    ("text", "seconds"), [("15min", 900), ("900s", 900), ("500ms", 0.5), ("1h", 3600), (2.5, 2.5), ("30", 30)]
)
def test_durations(text: str | float, seconds: float) -> None:
    assert settings.transaction_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "-3s", "5 years"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ConfigurationError):
        KafkaSink("t", servers="s", transaction_timeout=text)


def test_sparks_spelling_is_understood() -> None:
    plain = settings.normalise({"kafka.compression.type": "lz4", "kafka.enable.ssl.certificate.verification": False})
    assert plain == {"compression.type": "lz4", "enable.ssl.certificate.verification": "false"}


def test_javas_login_line_becomes_user_and_password() -> None:
    line = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ana" password="a\\"b";'
    assert settings.normalise({"kafka.sasl.jaas.config": line}) == {"sasl.username": "ana", "sasl.password": 'a"b'}


def test_javas_pem_truststore_becomes_the_authority() -> None:
    java = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "/ca.pem"}
    assert settings.normalise(java) == {"ssl.ca.location": "/ca.pem"}


@pytest.mark.parametrize("name", ["transactional.id", "kafka.acks", "enable.idempotence", "bootstrap.servers"])
def test_what_the_protocol_needs_is_not_the_users(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name.removeprefix("kafka.")):
        KafkaSink("t", servers="s", options={name: "x"})


def test_users_override_defaults_and_the_delivery_timeout_fits_the_transaction() -> None:
    made = settings.for_producer("s:1", {"linger.ms": "50"}, 30)
    assert made["linger.ms"] == "50"
    assert made["partitioner"] == "murmur2_random"
    assert made["delivery.timeout.ms"] == "30000"
    assert made["acks"] == "all"


def test_the_same_connection_for_kafka_python() -> None:
    admin = for_kafka_python("a:1, b:2", settings.normalise(SASL))
    assert admin["bootstrap_servers"] == ["a:1", "b:2"]
    assert admin["security_protocol"] == "SASL_SSL"
    assert admin["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (admin["sasl_plain_username"], admin["sasl_plain_password"]) == ("ana", "hunter2")
    assert admin["ssl_cafile"] == "/ca.pem"
    assert admin["ssl_check_hostname"] is True
    loose = for_kafka_python("a", {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"})
    assert loose["ssl_check_hostname"] is False
    blind = for_kafka_python("a", {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})
    assert blind["ssl_context"].check_hostname is False


def test_secrets_are_not_shown_but_travel() -> None:
    sink = KafkaSink("t", servers="s", options=SASL)
    assert "hunter2" not in repr(sink) + str(sink) + sink.describe() + repr(sink.link("u"))
    assert "ana" in repr(sink)
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert "hunter2" not in repr(Connections("s", sink.options)._config)


def test_a_refused_setting_does_not_repeat_its_value() -> None:
    from penstock.kafka.librdkafka import Handle

    with pytest.raises(ConfigurationError) as caught:
        Handle({"compression.type": "hunter2"}, lambda row: None, lambda code, text: None)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        Handle({"no.such.setting": "1"}, lambda row: None, lambda code, text: None)


def test_creating_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="create_topic"):
        KafkaSink(servers="s", create_topic=True)


def test_everything_imports_without_the_clients() -> None:
    program = """
import sys
sys.modules.update({"confluent_kafka": None, "kafka": None})
import penstock.sinks.kafka
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.kafka import committer, pool, transactions, writer
from penstock.kafka import connections, librdkafka
from penstock.errors import MissingExtra
for use in (librdkafka.library, lambda: connections.Connections("s", {})):
    try:
        use()
    except MissingExtra as error:
        assert "penstock[kafka]" in str(error)
    else:
        raise SystemExit("no MissingExtra")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert MissingExtra.retryable is False
