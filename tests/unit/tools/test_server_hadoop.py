"""How the Hadoop for tests is set up; no server is started here."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.servers import hadoop as dev
from tests.support.servers.hadoop import Hadoop


@pytest.fixture
def hadoop(tmp_path: Path) -> Hadoop:
    made = Hadoop(tmp_path / "hadoop", 2, {"yarn.nm.liveness-monitor.expiry-interval-ms": "15000", "odd": "<&>"})
    made._configure()
    return made


def properties(file: Path) -> dict[str, str]:
    found = ElementTree.parse(file).getroot().findall("property")
    return {one.findtext("name", ""): one.findtext("value", "") for one in found}


def test_every_file_says_the_same(hadoop: Hadoop) -> None:
    """Which of its files Hadoop looks for a setting in is nobody's concern."""
    core, *others = [properties(file) for file in sorted(hadoop.conf.glob("*.xml"))]
    assert len(others) == 3
    assert all(one == core for one in others)
    assert core["fs.defaultFS"] == hadoop.hdfs
    assert core["yarn.nm.liveness-monitor.expiry-interval-ms"] == "15000"
    assert core["odd"] == "<&>"


def test_nothing_listens_beyond_this_machine(hadoop: Hadoop) -> None:
    shared = properties(hadoop.conf / "yarn-site.xml")
    own = {key: value for node in hadoop.nodes for key, value in node.settings.items()}
    addresses = {key: value for key, value in {**shared, **own}.items() if key.endswith("address")}
    assert len(addresses) == 8
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", value) for value in addresses.values()), addresses
    ports = [server.port for server in hadoop.servers]
    assert len(set(ports)) == len(ports)


def test_containers_keep_to_the_folder(hadoop: Hadoop) -> None:
    home = properties(hadoop.conf / "yarn-site.xml")["yarn.nodemanager.user-home-dir"]
    assert Path(home).is_relative_to(hadoop.folder)
    assert not set(hadoop.nodes[0].settings.values()) & set(hadoop.nodes[1].settings.values())


def test_running_containers_are_found_by_their_pid_files(hadoop: Hadoop) -> None:
    node = hadoop.nodes[0]
    assert node.containers == {}
    private = node.folder / "local" / "nmPrivate" / "application_1_0001"
    for name, text in (("container_1_0001_01_000001", "4711\n"), ("container_1_0001_01_000002", "")):
        (private / name).mkdir(parents=True)
        (private / name / f"{name}.pid").write_text(text)
    assert node.containers == {"container_1_0001_01_000001": 4711}, "one that is just being written is not there yet"


def test_hdfs_is_formatted_once(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "jar_set", lambda name: [Path(f"{name}.jar")])
    assert "-format" in hadoop.storage._command()
    (hadoop.storage.folder / "data").mkdir(parents=True)
    assert "-format" not in hadoop.storage._command()
