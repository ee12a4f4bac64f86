"""What is remembered of the development broker: one or several, written by this version or the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.dev.servers import service
from penstock.dev.servers.cluster import replicated


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    file = service.service_folder() / "state.json"
    file.parent.mkdir(parents=True)
    return file


def test_one_broker_of_the_version_before_clusters_is_read(state: Path) -> None:
    state.write_text('{"pid": 71, "port": 9092}')
    [node] = service._read()
    assert (node.pid, node.port, node.folder) == (71, 9092, service.service_folder())


@pytest.mark.parametrize("brokers", [1, 3])
def test_what_is_written_is_read(state: Path, brokers: int) -> None:
    folder = service.service_folder()
    folders = [folder] if brokers == 1 else [folder / "cluster-of-3" / f"node-{n}" for n in (1, 2, 3)]
    nodes = [service._Node(70 + n, 9092 + n, each) for n, each in enumerate(folders)]
    service._write(nodes)
    assert json.loads(state.read_text())["format"] == 2
    assert service._read() == nodes


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"brokers": [{"pid": 1}]}', '{"brokers": 3}', '{"pid": "x", "port": 1}']
)
def test_what_cannot_be_read_is_none(state: Path, text: str) -> None:
    state.write_text(text)
    assert service._read() == []
    assert not service.status().running


def test_brokers_that_are_gone_are_named(state: Path) -> None:
    nodes = [{"pid": 2_000_000_000 + n, "port": 1} for n in range(2)]
    state.write_text(json.dumps({"format": 2, "brokers": nodes}))
    assert service.status().note == "2 brokers were started, and 2000000000, 2000000001 of their processes are gone."


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (5, "3", "2")]
)
def test_everything_is_on_three_brokers_or_on_all(brokers: int, replicas: str, in_sync: str) -> None:
    settings = replicated(brokers)
    assert {value for name, value in settings.items() if "replication" in name} == {replicas}
    assert {value for name, value in settings.items() if "isr" in name or "insync" in name} == {in_sync}
