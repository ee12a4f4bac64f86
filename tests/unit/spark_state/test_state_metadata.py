"""Spark's description of state: read, moved, rescaled, and the settings in its positions."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from penstock.checkpoint.spark_files import conf_of, set_conf
from penstock.errors import ConfigurationError, LedgerCorrupt
from penstock.spark_state.metadata import families, read_metadata, read_operators, relocate
from penstock.spark_state.rewrite import CODEC, RewritePlan
from penstock.storage.local import LocalTree
from tests.support.state_files import (
    HASHMAP,
    KEY,
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    VALUE,
    aggregation,
    checkpoint,
    description,
    transform,
    utf,
)


def test_an_aggregation(tmp_path: Path) -> None:
    folder = aggregation(tmp_path)
    [found] = read_operators(None, folder.location, 3)
    store = {"name": "default", "partitions": 2, "key_schema": KEY, "value_schema": VALUE}
    assert found == {"id": 0, "name": "stateStoreSave", "stores": [store], "partitions": 2}


def test_what_is_written_again_is_the_same(tmp_path: Path) -> None:
    folder = aggregation(tmp_path / "a")
    other = LocalTree(tmp_path / "b")
    [operator] = read_metadata(folder, 3)
    operator.write(other)
    for name in ("state/0/_metadata/metadata", "state/0/0/_metadata/schema"):
        assert other.storage.read(name) == folder.storage.read(name)
    operator.rescaled(7).write(other)
    assert [store.partitions for store in read_metadata(other, 3)[0].stores] == [7]


def test_families_are_stores_of_their_own(tmp_path: Path) -> None:
    """Of several descriptions the newest up to the batch counts, wherever the original was."""
    folder = transform(tmp_path, "/gone/elsewhere")
    assert [store["name"] for store in read_operators(None, folder.location, 3)[0]["stores"]] == ["count", "seen"]
    assert [store["name"] for store in read_operators(None, folder.location, 3)[0]["stores"]] == ["count", "seen"]
    [operator] = read_metadata(folder, 3)
    assert operator.has_families
    assert operator.properties == '{"timeMode":"None"}'


def test_a_moved_checkpoint_is_made_to_stand_on_its_own(tmp_path: Path) -> None:
    folder = transform(tmp_path, "/gone/elsewhere")
    assert not read_metadata(folder, 3)[0].stands_in(folder)
    relocate(folder, 3)
    [operator] = read_metadata(folder, 3)
    assert operator.stands_in(folder)
    data = folder.storage.read("state/0/_metadata/v2/2") or b""
    [path] = json.loads(data.partition(b"\n")[2])["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert path == f"{folder.location}/state/0/_stateSchema/default/2_a"


def test_a_query_without_state(tmp_path: Path) -> None:
    assert read_operators(None, checkpoint(tmp_path).location, 3) == ()


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    folder = aggregation(tmp_path)
    folder.delete("state/0/0/_metadata/schema")
    with pytest.raises(LedgerCorrupt, match="no state/0/0/_metadata/schema"):
        read_operators(None, folder.location, 3)
    folder.put("state/0/_metadata/metadata", b"v9\n{}")
    with pytest.raises(LedgerCorrupt, match="form this version does not know"):
        read_operators(None, folder.location, 3)
    folder.delete("state/0/_metadata/metadata")
    with pytest.raises(LedgerCorrupt, match="no description of it"):
        read_operators(None, folder.location, 3)
    with pytest.raises(LedgerCorrupt, match="no positions of batch 4"):
        read_operators(None, folder.location, 4)


def test_odd_characters_in_a_schema() -> None:
    """Java writes what lies beyond 16 bits as two surrogates, and a zero as two bytes."""
    java = '"x😀"'.encode("utf-16-be")
    units = [java[at : at + 2] for at in range(0, len(java), 2)]
    text = b"".join(unit.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass") for unit in units)
    raw = struct.pack(">H", len(text)) + text
    [family] = families(utf("v2") + struct.pack(">i", 1) + raw + struct.pack(">i", 1) + raw)
    assert family.key == "x😀"


def test_settings_are_changed_and_positions_are_not(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (tmp_path / "offsets" / ".3.crc").write_bytes(b"stale")
    set_conf(folder, 3, {PARTITIONS: "5"})
    assert conf_of(folder, 3) == {PROVIDER: HASHMAP, PARTITIONS: "5"}
    lines = (folder.storage.read("offsets/3") or b"").decode().split("\n")
    assert (lines[0], lines[2:]) == ("v1", ['{"next": 1}', "-"])
    assert json.loads(lines[1])["batchWatermarkMs"] == 7
    assert not (tmp_path / "offsets" / ".3.crc").exists()


def test_settings_that_are_so_already_leave_the_file_alone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    before = (tmp_path / "offsets" / "3").stat().st_ino
    set_conf(folder, 3, {PARTITIONS: "2"})
    assert (tmp_path / "offsets" / "3").stat().st_ino == before


class TestWhatCannotBeDone:
    CONF = {PROVIDER: ROCKSDB, PARTITIONS: "2"}

    def test_families_on_hashmap(self, tmp_path: Path) -> None:
        found = read_metadata(transform(tmp_path, str(tmp_path)), 3)
        assert RewritePlan.of(self.CONF, found, 5, None).partitions == 5
        with pytest.raises(ConfigurationError, match="several column families, which hashmap cannot hold"):
            RewritePlan.of(self.CONF, found, None, "hashmap")

    def test_a_limit(self, tmp_path: Path) -> None:
        folder = aggregation(tmp_path)
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}
        folder.put("state/0/_metadata/metadata", description(1, "globalLimit", [store]))
        with pytest.raises(ConfigurationError, match=r"operator 0 \(globalLimit\) cannot be rewritten"):
            RewritePlan.of(self.CONF, read_metadata(folder, 3), 3, None)

    def test_a_join_in_format_4(self, tmp_path: Path) -> None:
        folder = aggregation(tmp_path)
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}
        folder.put("state/0/_metadata/metadata", description(1, "symmetricHashJoin", [store]))
        conf = {**self.CONF, "spark.sql.streaming.join.stateFormatVersion": "4"}
        with pytest.raises(ConfigurationError, match="join format 4"):
            RewritePlan.of(conf, read_metadata(folder, 3), 3, None)

    def test_somebody_elses_backend(self) -> None:
        with pytest.raises(ConfigurationError, match=r"kept by com\.acme\.Store"):
            RewritePlan.of({PROVIDER: "com.acme.Store", PARTITIONS: "2"}, [], None, None)
        with pytest.raises(ConfigurationError, match="no state backend 'forst'"):
            RewritePlan.of(self.CONF, [], None, "forst")

    def test_no_partitions(self) -> None:
        with pytest.raises(ConfigurationError, match="over 0 partitions"):
            RewritePlan.of(self.CONF, [], 0, None)

    def test_checksums_of_rows_are_turned_off_on_hashmap(self) -> None:
        conf = {**self.CONF, "spark.sql.streaming.stateStore.rowChecksum.enabled": "true"}
        assert RewritePlan.of(conf, [], None, "hashmap").settings == {
            PROVIDER: HASHMAP,
            PARTITIONS: "2",
            CODEC: "zstd",
            "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
        }
        assert "spark.sql.streaming.stateStore.rowChecksum.enabled" not in RewritePlan.of(conf, [], 3, None).settings
