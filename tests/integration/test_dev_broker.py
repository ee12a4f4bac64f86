"""The development broker is a real one: it keeps its data, it knows passwords, it stays and goes when told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.dev.kafka import answers_kafka, free_port
from penstock.errors import DevelopmentError
from tests.support.kafka import create_topic
from tests.support.servers.broker import Broker
from tests.support.servers.security import SecureBroker, SecurityFiles


def send(settings: dict[str, Any], topic: str, values: list[bytes]) -> None:
    producer = Producer({**settings, "delivery.timeout.ms": 20_000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def receive(settings: dict[str, Any], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**settings, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    end = time.monotonic() + 20
    try:
        while len(found) < count and time.monotonic() < end:
            found += [message.value() for message in consumer.consume(count - len(found), 0.2) if not message.error()]
    finally:
        consumer.close()
    return found


def test_what_is_sent_is_received(broker: Broker, topic: Callable[..., str]) -> None:
    name, settings = topic(), {"bootstrap.servers": broker.servers}
    send(settings, name, [b"a", b"b"])
    assert receive(settings, name, 2) == [b"a", b"b"]


def test_topics_are_made_as_asked(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    metadata = AdminClient({"bootstrap.servers": broker.servers}).list_topics(name, timeout=10)
    assert len(metadata.topics[name].partitions) == 3
    missing = AdminClient({"bootstrap.servers": broker.servers}).list_topics("never-made", timeout=10)
    assert missing.topics["never-made"].error is not None, "a misspelt topic must not appear by itself"


@pytest.mark.long
def test_data_outlives_kill_9_and_a_clean_restart(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "kafka", heap="512m") as broker:
        settings = {"bootstrap.servers": broker.servers}
        name = create_topic(broker.servers)
        send(settings, name, [b"before"])
        first, servers = broker.pid, broker.servers
        broker.kill()
        assert not broker.running
        assert not answers_kafka(broker.port)
        with pytest.raises(DevelopmentError, match="not running"):
            _ = broker.pid
        broker.restart()
        assert broker.servers == servers
        assert broker.pid != first
        send(settings, name, [b"between"])
        broker.restart()
        send(settings, name, [b"after"])
        assert receive(settings, name, 3) == [b"before", b"between", b"after"]
    assert not broker.running


def test_a_paused_broker_is_silent_and_comes_back(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "kafka", heap="512m") as broker:
        broker.pause()
        assert not answers_kafka(broker.port, timeout=0.5)
        broker.resume()
        assert answers_kafka(broker.port, timeout=10)
        broker.pause()  # leaving must end it all the same
    assert not broker.running


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DevelopmentError, match="not-a-number") as caught:
        Broker.start(tmp_path / "kafka", properties={"num.io.threads": "not-a-number"})
    assert str(tmp_path / "kafka" / "broker.log") in caught.value.to_do


def test_the_right_password_over_tls(sasl_broker: SecureBroker, security: SecurityFiles) -> None:
    name = create_topic(sasl_broker.servers)
    for user in security.users:
        settings = {"bootstrap.servers": sasl_broker.sasl_servers, **security.client(user)}
        send(settings, name, [user.encode()])
    settings = {"bootstrap.servers": sasl_broker.sasl_servers, **security.client()}
    assert receive(settings, name, 2) == [b"alice", b"bob"]


@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_a_wrong_password_or_authority_is_refused(
    sasl_broker: SecureBroker, security: SecurityFiles, tmp_path: Path, wrong: str
) -> None:
    from tests.support.servers.security import make_security

    client = security.client("alice", password="wrong")
    if wrong == "certificate":
        other = make_security(tmp_path, {"alice": "x"})
        client = {**security.client("alice"), "ssl.ca.location": str(other.ca)}
    errors: list[str] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": sasl_broker.sasl_servers,
        **client,
        "error_cb": lambda error: errors.append(error.name()),
    }
    admin = AdminClient(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(1)
    assert ("_AUTHENTICATION" if wrong == "password" else "_SSL") in errors


class Command:
    """`penstock dev kafka …` in processes of their own, over one cache that holds the jars already."""

    def __init__(self, cache: Path) -> None:
        from penstock.supply.jars import jar_folder, jar_set

        (cache / "jars").mkdir(parents=True)
        for name in ("kafka-broker", "spark-kafka"):
            jar_set(name)
            (cache / "jars" / jar_folder(name).name).symlink_to(jar_folder(name))
        self.environment = {**os.environ, "PENSTOCK_CACHE": str(cache)}

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        line = "from penstock.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", line, "dev", "kafka", *arguments, "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or done.stderr)


def test_up_status_down(tmp_path: Path) -> None:
    penstock, port = Command(tmp_path / "cache"), free_port()
    try:
        assert penstock("status")[0] == 1
        status, up = penstock("up", "--port", str(port))
        assert (status, up["running"], up["servers"]) == (0, True, f"127.0.0.1:{port}")
        name = create_topic(up["servers"])
        assert penstock("up") == (0, up), "a second up finds the first"
        assert penstock("up", "--port", str(free_port()))[1]["error"] == "DevelopmentError"
        assert penstock("status") == (0, up)

        os.kill(up["pid"], 9)
        status, now = penstock("status")
        assert (status, now["running"]) == (1, False)
        assert "gone" in now["note"]

        status, again = penstock("up", "--port", str(port))
        assert status == 0
        assert again["pid"] != up["pid"]
        metadata = AdminClient({"bootstrap.servers": again["servers"]}).list_topics(timeout=10)
        assert name in metadata.topics, "topics stay from one time to the next"
    finally:
        status, down = penstock("down")
    assert (status, down["running"]) == (0, False)
    assert str(again["pid"]) in down["note"]
    assert not answers_kafka(port)
    assert penstock("down")[0] == 0, "a second down has nothing to do"


def test_a_taken_port_is_an_error_when_asked_for(tmp_path: Path, broker: Broker) -> None:
    status, answer = Command(tmp_path / "cache")("up", "--port", str(broker.port))
    assert status == 1
    assert f"Port {broker.port} is taken" in answer["happened"]


def penstock(*arguments: str, given: str = "", status: int = 0) -> str:
    line = "from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", line, "dev", "kafka", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_topics_are_filled_and_read_back(broker: Broker) -> None:
    name, at = f"t-{uuid.uuid4().hex[:8]}", ("--servers", broker.servers)
    penstock("produce", name, "--rows", "200", "--rate", "0", "--partitions", "2", *at)
    listed = {row["topic"]: row for row in json.loads(penstock("topics", *at, "--json"))}
    assert listed[name] == {"topic": name, "partitions": 2, "rows": 200}
    rows = [json.loads(line) for line in penstock("consume", name, "--until-end", *at, "--json").splitlines()]
    payments = sorted((json.loads(row["value"]) for row in rows), key=lambda payment: payment["id"])
    assert [payment["id"] for payment in payments] == list(range(200))
    assert sum(payment["amount"] > 1000 for payment in payments) == 1
    assert all(row["key"] == json.loads(row["value"])["account"] for row in rows)

    lines = f"{name}-lines"
    penstock("topics", lines, "--partitions", "1", *at)
    penstock("produce", lines, "--stdin", "--rate", "0", *at, given="one\ntwo\x1b[2J\n")
    assert penstock("consume", lines, "--rows", "2", *at) == "-  one\n-  two\ufffd[2J\n", "no control sequences"


def test_only_committed_rows_are_read_unless_asked_for(broker: Broker, topic: Callable[..., str]) -> None:
    name, at = topic(), ("--servers", broker.servers)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": name})
    producer.init_transactions(30)
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(30)
        end(30)
    assert penstock("consume", name, "--until-end", *at) == "-  kept\n"
    assert penstock("consume", name, "--until-end", "--uncommitted", *at) == "-  kept\n-  dropped\n"


def test_a_broker_or_topic_that_is_not_there_is_named(broker: Broker, tmp_path: Path) -> None:
    error = penstock("consume", "never-made", "--until-end", "--servers", broker.servers, status=1)
    assert "There is no topic" in error
    status, answer = Command(tmp_path / "cache")("topics")
    assert status == 1
    assert "no development broker runs" in answer["happened"]
