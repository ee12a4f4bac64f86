"""Settings of the Kafka cluster for tests; no broker is started here."""

from __future__ import annotations

import pytest

from tests.support.servers.kafka_cluster import replicated


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (5, "3", "2")]
)
def test_everything_is_on_three_brokers_or_on_all(brokers: int, replicas: str, in_sync: str) -> None:
    settings = replicated(brokers)
    assert {value for name, value in settings.items() if "replication" in name} == {replicas}
    assert {value for name, value in settings.items() if "isr" in name or "insync" in name} == {in_sync}
