"""The Connect server of the installed PySpark, as a child of a test, and clients of it as processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from penstock import processes
from tests.support.jobs import connect_client
from tests.support.waiting import until

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Server:
    """The Connect server of the installed PySpark, started as `start-connect-server.sh` starts it."""

    def __init__(
        self, folder: Path, *, jars: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        home = Path(pyspark.__file__).parent
        settings = {
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
            "spark.python.daemon.module": "penstock.spark.python_daemon",
        }
        arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self.log = folder / f"server-{self.port}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]", *arguments],
                env={**os.environ, **(environment or {}), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        until(self._answers, lambda: f"the server\n{self.log.read_text()[-2000:]}", 120)

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def client(self, folder: Path, epochs: int, python: str | Path = sys.executable) -> subprocess.Popen[str]:
        """Of this environment, or another's, where neither Java nor Penstock is to be found."""
        elsewhere = {"PATH": "", "HOME": str(folder)} if python != sys.executable else None
        command = [str(python), connect_client.__file__, self.url, str(folder), str(epochs)]
        return subprocess.Popen(command, env=elsewhere, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        for pid in processes.session_members(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
