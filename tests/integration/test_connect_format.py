"""`format("penstock")` through a real Connect server, from a client in another process, which has no driver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from penstock import failpoints
from tests.support.connect_server import Server
from tests.support.environments import thin_client
from tests.support.format_points import KILLED, before, parts_of
from tests.support.jobs import connect_mistakes
from tests.support.verdicts import assert_none, number_anomalies
from tests.support.waiting import until


def visible(folder: Path) -> list[int]:
    files = [file for file in (folder / "out").glob("*.parquet") if not file.name.startswith((".", "_"))]
    return [value for file in files for value in pq.read_table(file).column("value").to_pylist()]


def epochs(folder: Path) -> int:
    return len([file for file in (folder / "checkpoint" / "commits").glob("[0-9]*") if file.name.isdigit()])


def survive(folder: Path, points: Sequence[str], python: str | Path = sys.executable) -> None:
    """Servers that are killed, with their JVM and all workers, while one of them hangs at the point; then the verdict
    on what a last one makes of it."""
    for point in [place for wanted in points for place in (*before(wanted), wanted)]:
        acted = {failpoints.VARIABLE: f"{point}=hang", failpoints.ONCE: str(folder)}
        server = Server(folder, environment=acted)
        client = server.client(folder, 1_000, python)
        try:
            until(lambda: (folder / point).exists() or client.poll() is not None, point, 150)  # noqa: B023
            assert client.poll() is None, client.communicate()[1]
        finally:
            server.kill()
            client.kill()
            client.communicate()
    server = Server(folder)
    try:
        client = server.client(folder, epochs(folder) + 2, python)
        _, said = client.communicate(timeout=200)
        assert client.returncode == 0, said
    finally:
        server.kill()
    rows = visible(folder)
    sys.stdout.write(f"servers killed: {len(points)}; epochs: {epochs(folder)}; rows visible: {len(rows)}\n")
    assert_none(number_anomalies(range(max(len(rows), 10 * epochs(folder))), rows))


def test_a_server_killed_after_its_decision(tmp_path: Path) -> None:
    survive(tmp_path, ["epoch.decided"])


@pytest.mark.long
@pytest.mark.parametrize("points", parts_of([point for point in KILLED if point != "commit.first"]), ids="+".join)
def test_servers_killed_at_every_point(tmp_path: Path, points: Sequence[str]) -> None:
    """But between the commits of an epoch's writers: this query has one."""
    survive(tmp_path, points)


@pytest.mark.long
@pytest.mark.parametrize("version", [pyspark.__version__, "4.1.3"])
def test_a_thin_client(tmp_path: Path, version: str) -> None:
    """`pyspark-client` without Java, jars and Penstock, of the server's version and of the one before."""
    python = thin_client(version)
    there = subprocess.run([python, "-P", "-c", "import penstock"], cwd=tmp_path, env={}, capture_output=True)
    assert there.returncode != 0, "Penstock is not to be installed with the client"
    survive(tmp_path, ["epoch.decided"], python)


def test_what_is_wrong_is_named_in_the_client(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        asked = [sys.executable, connect_mistakes.__file__, server.url, str(tmp_path)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=280)
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    wanted = {
        "unknown_option": "does not know the option 'pth' with the sink 'files'",
        "option_missing": "has no option 'uid'",
        "ledger_missing": "LedgerError: The storage refused while writing /proc/not-there",
        "ledger_of_another_kind": "give a path of this machine, or a mounted folder",
        "one_uid_twice": "two queries have the uid 'out'",
        "schema_changed": "SchemaMismatch",
        "job": "ConnectUnsupported: The session is a Spark Connect session",
        "drop_in": "df.writeStream.format('penstock')",
    }
    assert said.keys() == wanted.keys()
    other = {name: error for name, error in said.items() if wanted[name] not in error or "To do: " not in error}
    assert not other
    assert not {name: error for name, error in said.items() if "Traceback" in error}
