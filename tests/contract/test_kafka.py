"""The Kafka sink keeps the contract."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.testing.sink_contract import SinkContract

pytest.importorskip("confluent_kafka")

from tests.support.kafka_harness import KafkaHarness


class TestKafka(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, broker: Any, request: pytest.FixtureRequest) -> None:
        expires = "other_system_ended" in request.node.name
        self.harness = KafkaHarness(broker.servers, timeout="2s" if expires else "60s")
