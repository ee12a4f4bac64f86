"""The Kafka sink keeps the contract with older brokers, too: with the first that was meant to run without ZooKeeper in
production, and with the last of the third series."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.sink_contract import SinkContract
from tests.support.kafka_harness import KafkaHarness
from tests.support.servers.broker import Broker

pytestmark = pytest.mark.long  # a broker of its own for each version

VERSIONS = ("3.3", "3.9")


@pytest.fixture(scope="module", params=VERSIONS)
def old_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp(f"kafka-{request.param}")
    with Broker.start(folder, heap="384m", jars=f"kafka-broker-{request.param}") as started:
        yield started


class TestOlderBrokers(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, old_broker: Broker, request: pytest.FixtureRequest) -> None:
        expires = "other_system_ended" in request.node.name
        self.harness = KafkaHarness(old_broker.servers, timeout="2s" if expires else "60s")
