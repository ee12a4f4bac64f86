"""Checkpoints with Spark's description of state, written by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from penstock.storage.local import LocalTree

KEY = {"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": True, "metadata": {}}]}
VALUE = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": False, "metadata": {}}]}
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"


def utf(text: str) -> bytes:
    data = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass").encode("utf-8")
    return struct.pack(">H", len(data)) + data


def chunks(*texts: str) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(utf(text) for text in texts)


def plain_schema() -> bytes:
    key = json.dumps(KEY)
    return utf("v2") + chunks(key[:10], key[10:]) + chunks(json.dumps(VALUE))


def family_schema(*names: str) -> bytes:
    body = utf("v3") + struct.pack(">i", len(names))
    for name in names:
        body += utf(name) + struct.pack(">h", 0) + chunks(json.dumps(KEY)) + struct.pack(">h", 0)
        body += chunks(json.dumps(VALUE)) + chunks("{}") + chunks("{    }")
    return body


def description(version: int, name: str, stores: list[dict[str, object]], **more: object) -> bytes:
    body = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": stores, **more}
    return f"v{version}\n{json.dumps(body, separators=(',', ':'))}".encode()


def checkpoint(root: Path, conf: dict[str, str] | None = None) -> LocalTree:
    folder = LocalTree(root)
    metadata = json.dumps({"batchWatermarkMs": 7, "conf": conf or {PROVIDER: HASHMAP, PARTITIONS: "2"}})
    folder.put("offsets/3", f'v1\n{metadata}\n{{"next": 1}}\n-'.encode())
    folder.put("commits/3", b'v1\n{"nextBatchWatermarkMs":7}')
    return folder


def aggregation(root: Path) -> LocalTree:
    folder = checkpoint(root)
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}
    folder.put("state/0/_metadata/metadata", description(1, "stateStoreSave", [store]))
    folder.put("state/0/0/_metadata/schema", plain_schema())
    return folder


def transform(root: Path, original: str) -> LocalTree:
    folder = checkpoint(root, {PROVIDER: ROCKSDB, PARTITIONS: "2"})
    for number in (0, 2, 9):
        store = {
            "storeName": "default",
            "numColsPrefixKey": 0,
            "numPartitions": 2,
            "stateSchemaFilePaths": [f"file:{original}/state/0/_stateSchema/default/{number}_a"],
        }
        body = description(2, "transformWithStateExec", [store], operatorPropertiesJson='{"timeMode":"None"}')
        folder.put(f"state/0/_metadata/v2/{number}", body)
        folder.put(f"state/0/_stateSchema/default/{number}_a", family_schema("count", "seen" * (number == 2) or "x"))
    return folder
