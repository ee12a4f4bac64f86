"""How KafkaSource turns what a user writes into what Spark's connector and librdkafka take."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.contracts.guarantees import Guarantee
from penstock.contracts.sink import CheckContext
from penstock.errors import AccessDenied, ConfigurationError, SystemUnavailable, TopicRecreated
from penstock.kafka import connections as group
from penstock.kafka.connections import GroupPublisher
from penstock.kafka.settings import for_java, for_librdkafka, split_options
from penstock.sources.kafka import TUNED, KafkaSource

SECRET = 's3cr"et\\'


def source(**more: Any) -> KafkaSource:
    return KafkaSource("orders", servers="localhost:9092", **more)


def test_the_defaults_are_exact_and_fast() -> None:
    options = source().reader_options("in")
    assert options["subscribe"] == "orders"
    assert options["startingOffsets"] == "earliest"
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.bootstrap.servers"] == "localhost:9092"
    assert options["kafka.isolation.level"] == "read_committed"
    assert {name: options[f"kafka.{name}"] for name in TUNED} == TUNED
    assert not any(f"kafka.{name}" in source(tuned=False).reader_options("in") for name in TUNED)


def test_what_the_user_says_wins_in_any_spelling() -> None:
    options = source(
        options={
            "kafka.max.poll.records": 7,
            "fetch.max.wait.ms": "99",
            "isolation.level": "read_uncommitted",
            "includeHeaders": True,
            "minpartitions": 8,
            "groupIdPrefix": "mine",
        }
    ).reader_options("in")
    assert options["kafka.max.poll.records"] == "7"
    assert options["kafka.fetch.max.wait.ms"] == "99"
    assert options["kafka.isolation.level"] == "read_uncommitted"
    assert options["includeHeaders"] == "true"
    assert options["minPartitions"] == "8"
    assert options["groupIdPrefix"] == "mine"
    assert not any(name.startswith("kafka.kafka.") for name in options)


def test_topics_positions_and_limits() -> None:
    listed = KafkaSource(["a", "b"], servers=["h:1", "h:2"], starting={"a": {"0": 5}}, max_offsets_per_epoch=10)
    options = listed.reader_options("in")
    assert options["subscribe"] == "a,b"
    assert options["kafka.bootstrap.servers"] == "h:1,h:2"
    assert options["startingOffsets"] == '{"a": {"0": 5}}'
    assert options["maxOffsetsPerTrigger"] == "10"
    by_pattern = KafkaSource(pattern="a.*", servers="h:1").reader_options("in")
    assert by_pattern["subscribePattern"] == "a.*"
    assert "subscribe" not in by_pattern


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": "h:1"},
        {"servers": "h:1", "topics": "a", "pattern": "b"},
        {"servers": " ", "topics": "a"},
        {"servers": "h:1", "topics": "a", "starting": "yesterday"},
        {"servers": "h:1", "topics": "a", "max_offsets_per_epoch": 0},
    ],
)
def test_contradictions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="KafkaSource"):
        KafkaSource(**wrong)


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")]
)
def test_a_login_becomes_jaas_and_comes_back(mechanism: str, module: str) -> None:
    user = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": mechanism,
        "sasl.username": "ann",
        "sasl.password": SECRET,
    }
    java = for_java(user)
    assert java["security.protocol"] == "SASL_SSL"
    assert java["sasl.mechanism"] == mechanism
    assert java["sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="ann" password="s3cr\\"et\\\\";'
    )
    assert "sasl.password" not in java
    admin = for_librdkafka("h:1", java)
    assert admin["sasl.username"] == "ann"
    assert admin["sasl.password"] == SECRET
    assert admin["sasl.mechanisms"] == mechanism
    assert "sasl.jaas.config" not in admin


def test_pem_files_become_stores(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----")
    (tmp_path / "cert").write_text("-----BEGIN CERTIFICATE-----")
    java = for_java(
        {
            "ssl.ca.location": "/etc/ca.pem",
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert java == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert for_librdkafka("h:1", java)["ssl.ca.location"] == "/etc/ca.pem"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        for_java({"ssl.key.location": str(tmp_path / "none"), "ssl.certificate.location": "x"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"enable.ssl.certificate.verification": "false"},
        {"ssl.key.pem": "-----BEGIN PRIVATE KEY-----"},
        {"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----", "ssl.certificate.pem": "x"},
        {"sasl.username": "a", "sasl.mechanism": "GSSAPI"},
    ],
)
def test_what_java_cannot_do_is_said(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="Java"):
        for_java(wrong)


def test_the_drivers_own_client_gets_only_what_concerns_the_connection() -> None:
    _, client = split_options({"kafka.max.poll.records": 1, "kafka.security.protocol": "SSL", "client.id": "x"})
    assert for_librdkafka("h:1", client) == {"security.protocol": "SSL", "client.id": "x", "bootstrap.servers": "h:1"}


def test_no_secret_is_ever_shown() -> None:
    secretive = source(options={"sasl.username": "ann", "sasl.password": SECRET})
    for shown in (repr(secretive), secretive.describe(), str(secretive.link("in"))):
        assert SECRET not in shown
    assert secretive.jars() == ("spark-kafka",)


def test_ignoring_losses_lowers_the_guarantee() -> None:
    assert source().link("in").guarantee is Guarantee.EXACTLY_ONCE
    for name, value in (("failOnDataLoss", False), ("failondataloss", "FALSE"), ("FAILONDATALOSS", "False")):
        assert source(options={name: value}).link("in").guarantee is Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize(
    "name", ["isolation.level", "kafka.isolation.level", "Isolation.Level", "KAFKA.Isolation.level"]
)
def test_reading_uncommitted_rows_lowers_the_guarantee_in_any_spelling(name: str) -> None:
    uncommitted = source(options={name: "READ_UNCOMMITTED"})
    assert uncommitted.link("in").guarantee is Guarantee.AT_LEAST_ONCE
    assert "aborted" in uncommitted.link("in").because
    assert uncommitted.reader_options("in")["kafka.isolation.level"] == "READ_UNCOMMITTED"
    assert source(options={name: "read_committed"}).link("in").guarantee is Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize(
    "harmless",
    [
        {"includeHeaders": True},
        {"kafka.group.id": "mine"},
        {"startingOffsetsByTimestamp": "{}"},
        {"maxTriggerDelay": "1m"},
        {"minPartitions": 8},
    ],
)
def test_options_that_read_every_row_leave_the_guarantee(harmless: dict[str, Any]) -> None:
    assert source(options=harmless).link("in").guarantee is Guarantee.EXACTLY_ONCE


def test_a_topic_that_was_created_again_is_refused_unless_its_id_is_accepted() -> None:
    replaced = {"orders": ("A", "B"), "returns": ("R", "S")}
    with pytest.raises(TopicRecreated) as refused:
        source(accepted_ids=["B"]).refuse_replaced("in", replaced)
    assert "'returns' (id R, now S)" in refused.value.happened
    assert "'orders'" not in refused.value.happened
    assert "accepted_ids=['S']" in refused.value.to_do
    assert not refused.value.retryable
    source(accepted_ids=["B", "S"]).refuse_replaced("in", replaced)
    assert source(accepted_ids="B").accepted_ids == ("B",)


def test_topics_of_which_something_was_read_are_compared_unless_losses_are_tolerated() -> None:
    offset = {"orders": {"0": 0, "1": 7}, "returns": {"0": 0}}
    for spelling in (offset, json.dumps(offset)):
        assert source().parts(spelling) == {"orders": {"0": 0, "1": 7}}
    assert source().identified
    assert not source(options={"failOnDataLoss": "false"}).identified


class Described:
    """An admin client that knows these topics."""

    def __init__(self, **ids: str) -> None:
        self._ids = ids

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics=dict.fromkeys(self._ids))

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        confluent_kafka = pytest.importorskip("confluent_kafka")
        missing = confluent_kafka.KafkaError(confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART)
        refused = confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
        found: dict[str, Any] = {}
        for name in topics.topic_names:
            found[name] = Future()
            if name == "secret":
                found[name].set_exception(confluent_kafka.KafkaException(refused))
            elif name in self._ids:
                found[name].set_result(SimpleNamespace(topic_id=self._ids[name]))
            else:
                found[name].set_exception(confluent_kafka.KafkaException(missing))
        return found


def test_ids_are_those_of_the_topics_that_are_there_and_have_one() -> None:
    pytest.importorskip("confluent_kafka")
    from penstock.sources.kafka import topic_ids

    client: Any = Described(orders="o1", old="A" * 22, returns="r1")
    assert topic_ids(client, "h:1", ["orders", "old", "gone"], None) == {"orders": "o1"}
    assert topic_ids(client, "h:1", [], "re.*") == {"returns": "r1"}
    assert topic_ids(client, "h:1", [], None) == {}
    with pytest.raises(AccessDenied, match="refused"):
        topic_ids(client, "h:1", ["secret"], None)


def test_a_broker_that_is_not_there() -> None:
    pytest.importorskip("confluent_kafka")
    nowhere = KafkaSource("orders", servers="localhost:1")
    with pytest.raises(SystemUnavailable, match="does not answer"):
        nowhere.check(CheckContext("job", 1.0, 0.5), "in")


def test_a_refused_login_is_told_from_silence() -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from penstock.sources.kafka import translate_error

    silence = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
    refused = confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTHENTICATION)
    assert isinstance(translate_error(silence, [refused], "h:1"), AccessDenied)
    assert isinstance(translate_error(silence, [], "h:1"), SystemUnavailable)


def test_only_the_newest_positions_are_published_and_not_too_often() -> None:
    sent: list[Any] = []
    arrived = threading.Event()

    def send(group: str, positions: Any) -> None:
        sent.append((group, positions))
        arrived.set()

    publisher = GroupPublisher(send, "g", pause=30.0)
    publisher.publish({"orders": {"0": 1}})
    assert arrived.wait(5)
    for end in range(2, 50):
        publisher.publish({"orders": {"0": end}})
    publisher.flush()
    publisher.flush()
    publisher.close()
    assert sent == [("g", {"orders": {"0": 1}}), ("g", {"orders": {"0": 49}})]


def test_a_group_that_cannot_be_reached_is_tried_again_and_mentioned_once(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[Any] = []
    mended = threading.Event()

    def send(_: str, positions: Any) -> None:
        tried.append(positions)
        if len(tried) < 6:
            raise RuntimeError("no coordinator")
        mended.set()

    with caplog.at_level(logging.WARNING):
        publisher = GroupPublisher(send, "g", pause=0.01)
        publisher.publish({"orders": {"0": 1}})
        assert mended.wait(5)
        publisher.close()
    assert tried == [{"orders": {"0": 1}}] * 6
    assert [record.message for record in caplog.records if record.name.startswith("penstock")] == [
        "positions could not be published to consumer group g, lag tools will not see this job: no coordinator"
    ]


def test_a_publisher_that_is_closed_sends_the_last_positions_and_ends_its_thread() -> None:
    sent: list[Any] = []
    arrived, ended = threading.Event(), threading.Event()

    def send(_: str, positions: Any) -> None:
        sent.append(positions)
        arrived.set()

    publisher = GroupPublisher(send, "closed", pause=30.0, end=ended.set)
    publisher.publish({"orders": {"0": 1}})
    assert arrived.wait(5)
    publisher.publish({"orders": {"0": 2}})
    publisher.close()
    assert sent == [{"orders": {"0": 1}}, {"orders": {"0": 2}}]
    assert ended.is_set()
    assert not [one for one in threading.enumerate() if one.name == "penstock-group-closed"]


def test_a_source_that_stops_closes_what_it_has_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Connection:
        def __init__(self, *_: Any) -> None: ...

        def ask(self, *_: Any) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(group, "Connections", Connection)
    one = source()
    one.publish("job", "in", {"orders": {"0": 1}})
    one.stop()
    assert closed == ["closed"]
    one.stop()
    late = group.AdminSender("h:1", {})
    late.close()
    late("g", {})  # was under way
    assert closed == ["closed"] * 2


def test_publishing_survives_pickling_and_nothing() -> None:
    one = source()
    one.publish("job", "in", None)
    assert pickle.loads(pickle.dumps(one)).topics == ("orders",)


def test_a_fork_publishes_its_positions_in_a_group_of_its_own() -> None:
    """Lag tools would show the fork's positions as those of the job."""
    source = KafkaSource("t", servers="s", group="mine")
    assert source.redirected("-next").group == "mine-next"
    assert source.group == "mine"
    assert KafkaSource("t", servers="s").redirected("-next").group is None  # it has the fork's name in it already
