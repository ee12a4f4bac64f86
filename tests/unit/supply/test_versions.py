"""What is known of a version of Spark, what is not guessed of a later one, and how older ones are asked."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.config.state import PROVIDERS, Backend
from penstock.errors import ConfigurationError, ConnectorMissing
from penstock.sources.readers import remembering
from penstock.spark import session
from penstock.spark_state.metadata import DEFAULT, Family, OperatorMetadata, Store
from penstock.spark_state.rewrite import RewritePlan, require_reader
from penstock.spark_state.store_rows import known_partition_columns
from penstock.supply import jars, versions
from penstock.supply.versions import VERSIONS, find_version

ROOT = Path(__file__).parents[3]
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]


def test_a_patch_is_its_minor_version() -> None:
    assert [find_version(f"{one.name}.7") for one in VERSIONS] == list(VERSIONS)
    assert find_version("4.1.0.dev3").name == "4.1"


def test_every_patch_that_was_tried_is_of_its_minor_version() -> None:
    assert all(find_version(one.patch) is one for one in VERSIONS)
    assert list(VERSIONS) == sorted(VERSIONS, key=lambda one: one.minor)


def test_of_a_later_version_nothing_is_guessed() -> None:
    later = find_version("4.9.0")
    assert (later.kafka_jars, later.log_known, later.name) == (None, False, "4.9")
    assert later.packages == NEWEST.packages


def test_an_older_version_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=re.escape("This is Spark 3.5.9, and Penstock needs 4.0 or newer")):
        find_version("3.5.9")


def test_a_version_that_nobody_has_tried_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_warned", set())
    with caplog.at_level(logging.WARNING, "penstock"):
        for text in ("4.9.0", "4.9.0", *(one.patch for one in VERSIONS if one.tried)):
            versions.warn_if_untried(text)
    (said,) = caplog.records
    assert "has not passed on Spark 4.9.0 yet" in said.getMessage()


def test_tried_is_what_the_matrix_has_passed_on() -> None:
    kept = json.loads((ROOT / "docs" / "reference" / "versions.json").read_text()).values()
    passed = {find_version(one["spark"]).name for one in kept if one["exit"] == 0}
    locked = find_version(re.findall(r'name = "pyspark"\nversion = "(.+)"', (ROOT / "uv.lock").read_text())[0])
    assert {one.name for one in VERSIONS if one.tried} == passed | {locked.name}  # make test runs on the locked one


def test_the_requirement_names_the_oldest_version() -> None:
    assert f'"pyspark>={OLDEST.name},<5"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("known", VERSIONS, ids=lambda one: one.name)
def test_each_version_has_its_connector_in_the_lock(known: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "installed_version", lambda: known)
    found = {jar.artifact: jar.version for jar in jars._set("spark-kafka")}
    assert find_version(found["spark-sql-kafka-0-10_2.13"]).minor <= known.minor


def test_a_connector_that_the_lock_lacks_is_asked_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "installed_version", lambda: find_version("4.9.0"))
    with pytest.raises(ConnectorMissing, match="no Kafka connector") as caught:
        jars.jar_set("spark-kafka")
    assert "spark.jars" in caught.value.to_do
    assert session.sets_to_bring(["spark-kafka"]) == []


def store(name: str, *key: str, families: int = 1) -> Store:
    schema = {"type": "struct", "fields": [{"name": one, "type": "long"} for one in key]}
    kinds = tuple(Family(DEFAULT if families == 1 else f"f{at}", schema, schema) for at in range(families))
    return Store(name, 0, 2, kinds)


@pytest.mark.parametrize(
    ("operator", "one", "columns"),
    [
        ("stateStoreSave", store(DEFAULT, "key", "window"), 2),
        ("stateStoreSave", store(DEFAULT), 0),
        ("dedupe", store(DEFAULT, "id"), 1),
        ("sessionWindowStateStoreSaveExec", store(DEFAULT, "user", "start"), 1),
        ("symmetricHashJoin", store("left-keyToNumValues", "id"), 1),
        ("symmetricHashJoin", store("left-keyWithIndexToValue", "id", "index"), 1),
    ],
)
def test_what_spreads_a_row_where_spark_cannot_be_asked(operator: str, one: Store, columns: int) -> None:
    assert known_partition_columns(operator, one) == columns


@pytest.mark.parametrize("known", VERSIONS, ids=lambda one: one.name)
def test_rocksdb_is_rewritten_only_where_spark_can(known: Any) -> None:
    plain = OperatorMetadata(0, "stateStoreSave", 1, (store(DEFAULT, "key"),), {})
    several = OperatorMetadata(0, "transformWithStateExec", 2, (store(DEFAULT, "key", families=2),), {})
    conf = {"spark.sql.streaming.stateStore.providerClass": PROVIDERS[Backend.ROCKSDB]}
    plan = RewritePlan(conf, Backend.ROCKSDB, 2)
    RewritePlan(conf, Backend.HASHMAP, 2).require_writer(known, [plain])
    plan.require_writer(known, [])
    require_reader(known, conf, [plain])
    if known.minor >= (4, 2):
        plan.require_writer(known, [plain])
        require_reader(known, conf, [several])
        return
    with pytest.raises(ConfigurationError, match="no way to write rows into RocksDB's files"):
        plan.require_writer(known, [plain])
    with pytest.raises(ConfigurationError, match="several column families"):
        require_reader(known, conf, [several])


class Reader:
    """As a source of ours has one: told where a query stands, and how much to read."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def getDefaultReadLimit(self) -> int:  # noqa: N802 - Spark's name
        return 10

    def latestOffset(self, start: dict[str, Any], limit: int) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"next": start["next"] + limit}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return [(start["next"], end["next"])]


def test_a_reader_that_is_told_nothing_remembers() -> None:
    reader = remembering(Reader)()
    assert reader.latestOffset() == {"next": 10}
    assert reader.initialOffset() == {"next": 0}, "which Spark asks only now"
    assert reader.latestOffset() == {"next": 10}, "asked again before the epoch was read"
    assert reader.partitions({"next": 0}, {"next": 10}) == [(0, 10)]
    assert reader.latestOffset() == {"next": 20}


def test_a_reader_of_a_query_that_goes_on_is_told_where() -> None:
    reader = remembering(Reader)()
    reader.partitions({"next": 70}, {"next": 70})  # as Spark tells the last position that it has
    assert reader.latestOffset() == {"next": 80}
