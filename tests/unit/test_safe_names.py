"""No name that comes out of a ledger, a savepoint or a checkpoint leads out of its folder: one test for each door."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from penstock.checkpoint.decision import Committable
from penstock.checkpoint.inflight import LogFile, read_log
from penstock.checkpoint.layout import seal
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.errors import UnsafeName
from penstock.naming import safe_name, safe_part
from penstock.savepoints.canonical import parse_operator
from penstock.savepoints.savepoint import Savepoint
from penstock.sinks.files import FileSink
from penstock.sinks.write_ahead.commit import RowLog
from penstock.spark_state.metadata import read_metadata
from penstock.storage.hadoop import ArrowTree
from penstock.storage.local import LocalStorage, LocalTree
from penstock.storage.local import LocalTree as Output

BAD = ["..", "../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "a\0b", "a\\..\\b", "a\nb", "a/", None, 7]
GOOD = ["a", "a/b", "..a", "a..b", ".hidden", "a b", "ż/ü", "%2F"]

bad = pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a\0b", "a\\b"])


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_leads_elsewhere(name: Any) -> None:
    for check in (safe_name, safe_part):
        with pytest.raises(UnsafeName, match="is not a name below"):
            check(name, "here")


@pytest.mark.parametrize("name", GOOD)
def test_a_name_that_stays(name: str) -> None:
    assert safe_name(name, "here") == name
    assert safe_name("", "here") == ""


@pytest.mark.parametrize("name", ["", "a/b"])
def test_what_is_to_be_one_part(name: str) -> None:
    with pytest.raises(UnsafeName):
        safe_part(name, "here")


@bad
def test_the_storages_themselves(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ledger, output = LocalStorage(root), Output(str(root))
    arrow = ArrowTree(LocalFileSystem(), str(root))
    folder, other = LocalTree(root), LocalTree(tmp_path / "other")
    other.put("file", b"")
    ledger.create("a", b"")
    doors: list[Callable[[], Any]] = [
        lambda: ledger.create(name, b""),
        lambda: ledger.read(name),
        lambda: ledger.list(name),
        lambda: ledger.delete(name),
        *(
            door
            for one in (output, arrow)
            for door in (
                lambda one=one: one.stage(name),
                lambda one=one: one.read(name),
                lambda one=one: one.open(name),
                lambda one=one: one.size(name),
                lambda one=one: one.remove(name),
                lambda one=one: one.rename("a", name),
                lambda one=one: one.rename(name, "a"),
                lambda one=one: one.write_durably(name, b""),
            )
        ),
        lambda: folder.at(name),
        lambda: folder.files(name),
        lambda: folder.put(name, b""),
        lambda: folder.delete(name),
        lambda: folder.digest(name),
        lambda: folder.take(other, {"file": name}),
        lambda: folder.take(other, {name: "file"}),
    ]
    for number, door in enumerate(doors):
        with pytest.raises(UnsafeName):
            pytest.fail(f"door {number} is open: {door()}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "root"]


@bad
@pytest.mark.parametrize("where", ["files", "queries"])
def test_a_savepoint_is_refused_before_anything_is_copied(name: str, where: str, tmp_path: Path) -> None:
    good = (Path(__file__).parents[1] / "data" / "savepoint-v1.json").read_bytes()
    body = json.loads(good)["body"]
    body[where] = {name: next(iter(body[where].values()))}
    with pytest.raises(UnsafeName):
        Savepoint.of(seal("savepoint", body), str(tmp_path))


def test_a_link_inside_a_savepoint_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    source, target = LocalTree(tmp_path / "savepoint"), LocalTree(tmp_path / "target")
    source.root.mkdir()
    for name in ("1.delta", "metadata"):
        (source.root / name).symlink_to(tmp_path / "secret")
        with pytest.raises(UnsafeName, match="secret"):
            target.take(source, {name: name})
    assert target.files() == {}


def operator(**changes: Any) -> dict[str, Any]:
    family = {"name": "default", "key": {}, "value": {}, "folder": "0/00-default"}
    store = {"name": "default", "prefix_columns": 0, "partitions": 2, "schema_files": [], "families": [family]}
    store |= changes.pop("store", {})
    body = {"id": 0, "name": "agg", "version": 1, "number": 0, "properties": None, "stores": [store], "files": {}}
    return {**body, **changes}


def test_the_layout_of_a_canonical_savepoint() -> None:
    parse_operator(operator())
    for crafted in (
        operator(files={"../../../x": base64.b64encode(b"x").decode()}),
        operator(store={"schema_files": ["../x"]}),
        operator(store={"name": "../x"}),
    ):
        with pytest.raises(UnsafeName):
            parse_operator(crafted)
    with pytest.raises(ValueError, match="invalid literal"):
        parse_operator(operator(id="../x"))


def test_the_schema_files_that_spark_s_description_names(tmp_path: Path) -> None:
    checkpoint = LocalTree(tmp_path)
    for path in ("/anywhere/state/0/../../../x", "/etc/passwd"):
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1, "stateSchemaFilePaths": [path]}
        body = {"operatorInfo": {"operatorId": 0, "operatorName": "agg"}, "stateStoreInfo": [store]}
        checkpoint.put("state/0/_metadata/v2/0", f"v2\n{json.dumps(body)}".encode())
        with pytest.raises(UnsafeName):
            read_metadata(checkpoint, 0)


@pytest.mark.parametrize(
    "crafted",
    [{"staged": "../victim"}, {"final": "../victim"}, {"final": "a/b"}, {"staged": "theirs.parquet"}, {"staged": "/x"}],
)
def test_what_a_manifest_says_of_the_file_sink(crafted: dict[str, str], tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"))
    committer = sink.open_committer(SinkScope("job", "out", 1))
    for victim in (tmp_path / "victim", tmp_path / "out" / "theirs.parquet"):
        victim.write_text("theirs")
    staged = "_penstock/job/out/staged/g00000001-e0000000000-a1-p00000-t1-ab.parquet"
    (tmp_path / "out" / staged).write_text("ours")
    one = Committable("out", 0, 1, 1, {"staged": staged, "final": "part-x", "bytes": 4, **crafted})
    with pytest.raises(UnsafeName):
        committer.commit(0, [one], Deadline(5))
    if "staged" in crafted:
        with pytest.raises(UnsafeName):
            committer.abort([one], Deadline(5))
    assert (tmp_path / "victim").read_text() == (tmp_path / "out" / "theirs.parquet").read_text() == "theirs"


@bad
def test_what_a_manifest_says_of_logs(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeName):
        list(read_log(str(tmp_path), LogFile(name, 1, 1)))
    row_log = RowLog(str(tmp_path), SinkScope("job", "out", 1))
    for door in (
        lambda: row_log.size(name),
        lambda: row_log.remove([name]),
        lambda: row_log.open(name, pa.schema([])),
        lambda: list(row_log.read(name, 1, 1)),
    ):
        with pytest.raises(UnsafeName):
            door()
