"""`format("penstock")` through a real Connect server, from a client in another process, which has no driver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from penstock import processes
from tests.support.jobs import connect_client
from tests.support.waiting import until

pytestmark = pytest.mark.long

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Server:
    """The Connect server of the installed PySpark, started as `start-connect-server.sh` starts it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        home = Path(pyspark.__file__).parent
        settings = {
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.python.daemon.module": "penstock.spark.python_daemon",
        }
        arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self.log = folder / f"server-{self.port}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]", *arguments],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        until(self._answers, lambda: f"the server\n{self.log.read_text()[-2000:]}", 120)

    def client(self, folder: Path, epochs: int, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, connect_client.__file__, f"sc://127.0.0.1:{self.port}", str(folder), str(epochs), *more],
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        for pid in processes.session_members(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    yield started
    started.kill()


def visible(folder: Path) -> Counter[int]:
    files = [file for file in (folder / "out").glob("*.parquet") if not file.name.startswith((".", "_"))]
    return Counter(value for file in files for value in pq.read_table(file).column("value").to_pylist())


def epochs(folder: Path) -> int:
    return len([file for file in (folder / "checkpoint" / "commits").glob("[0-9]*") if file.name.isdigit()])


def test_a_server_killed_again_and_again(server: Server, tmp_path: Path) -> None:
    for kill in range(3):
        client = server.client(tmp_path, 1_000)
        wanted = 4 * (kill + 1)
        until(lambda: epochs(tmp_path) >= wanted or client.poll() is not None, "epochs", 120)  # noqa: B023
        assert client.poll() is None, client.communicate()[1]
        server.kill()
        client.kill()
        client.communicate()
        server.__init__(tmp_path)  # type: ignore[misc]
    client = server.client(tmp_path, epochs(tmp_path) + 3)
    _, said = client.communicate(timeout=200)
    assert client.returncode == 0, said
    rows = visible(tmp_path)
    assert rows == Counter(range(len(rows))), "a row is missing or doubled"
    assert len(rows) >= 10 * epochs(tmp_path)


def test_what_is_wrong_is_named_in_the_client(server: Server, tmp_path: Path) -> None:
    client = server.client(tmp_path, 1, "pth=elsewhere")
    _, said = client.communicate(timeout=200)
    assert client.returncode == 1
    assert "does not know the option 'pth' with the sink 'files'" in said
    assert "To do: remove it" in said
    assert "Traceback" not in said.partition("QUERY FAILED")[2]
