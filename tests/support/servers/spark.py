"""A real Spark standalone cluster for development and tests: one master, some workers, on this machine only.

    with SparkCluster.start(folder, workers=2) as cluster:
        spark = SparkSession.builder.master(cluster.url).getOrCreate()

It is what `pip install pyspark` brings; nothing is simulated. Each worker starts an executor of its own for every
application. A master that is restarted knows its workers and applications again. Everything is bound to 127.0.0.1.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock import processes
from penstock.dev.kafka import HOST, free_port
from penstock.naming import user_cache
from penstock.supply.java import find_java, wrapped_home
from tests.support.servers.server import Server, Stoppable

_PACKAGE = "org.apache.spark.deploy"
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_ASK_SECONDS = 5.0
_LEAVE_SECONDS = 10.0  # executors go when they have lost their worker; one that is paused does not

#: Small and quick to start. Nothing here changes how an application is run.
_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_DAEMON_MEMORY = "256m"


class SparkDaemon(Server):
    """What master and workers share: a class of Spark's. Its script would only start another JVM first."""

    ready_seconds = 120.0  # 2 seconds when idle; far longer on a machine busy with Spark
    kind: str
    options: tuple[str, ...] = ()

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        self.ui_port = free_port()

    def stop(self) -> None:
        """End it, and whatever it has started."""
        leader = self._process.pid if self._process is not None else None
        super().stop()
        if leader is not None:
            processes.end_session(leader, _LEAVE_SECONDS)

    def _command(self) -> list[str]:
        given = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.ui_port), *self._arguments()]
        home = spark_home()
        java = [str(find_java().java), f"-Xmx{_DAEMON_MEMORY}", *_JAVA_OPTIONS, *self.options]
        return [*java, "-cp", f"{home}/conf/:{home}/jars/*", f"{_PACKAGE}.{self.kind}", *given]

    def _arguments(self) -> list[str]:
        return []

    def _process_options(self) -> dict[str, Any]:
        return {"env": self._environment()}

    def _environment(self) -> Mapping[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": _scala_version(),
            "JAVA_HOME": str(wrapped_home(find_java().home, user_cache())),  # executors run on it
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }


class SparkMaster(SparkDaemon):
    """A started master."""

    name = "The Spark master"
    log_name = "master.log"
    data_name = "recovery"
    kind = "master.Master"

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder, port)
        self.options = (
            "-Dspark.deploy.recoveryMode=FILESYSTEM",
            f"-Dspark.deploy.recoveryDirectory={self._data}",
            "-Dspark.master.rest.enabled=false",  # jobs are submitted by their own driver
            "-Dspark.worker.timeout=20",  # seconds without a sign of life; a minute by default
        )

    @classmethod
    def start(cls, folder: Path, *, port: int | None = None) -> SparkMaster:
        """Start a master that knows of no worker and no application yet."""
        return cls(folder, port)._begin()

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    @property
    def ui(self) -> str:
        return f"http://{HOST}:{self.ui_port}"

    def state(self) -> dict[str, Any] | None:
        """What it says of itself, its workers and applications; None where it does not answer."""
        return ask_master(self.ui_port)

    def _prepare(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # what it knew belongs to processes that are gone
        self._data.mkdir(mode=0o700)

    def _answers(self) -> bool:
        state = self.state()
        return state is not None and state["status"] == "ALIVE"


class SparkWorker(SparkDaemon):
    """A started worker, registered with its master."""

    name = "The Spark worker"
    log_name = "worker.log"
    data_name = "work"
    kind = "worker.Worker"

    def __init__(self, folder: Path, master: SparkMaster, cores: int, memory: str) -> None:
        super().__init__(folder)
        self.master, self.cores, self.memory = master, cores, memory

    @classmethod
    def start(cls, folder: Path, master: SparkMaster, *, cores: int = 1, memory: str = "1g") -> SparkWorker:
        return cls(folder, master, cores, memory)._begin()

    def executors(self) -> list[int]:
        """The process ids of its executors."""
        if not self.running:
            return []
        return [pid for pid in processes.session_members(self.pid) if is_executor(pid)]

    def _prepare(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "local").mkdir(mode=0o700, exist_ok=True)

    def _arguments(self) -> list[str]:
        given = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self._data)]
        return [*given, self.master.url]

    def _answers(self) -> bool:
        state = self.master.state()
        return state is not None and any(
            worker["port"] == self.port and worker["state"] == "ALIVE" for worker in state["workers"]
        )


class SparkCluster(Stoppable):
    """A master and its workers. Workers and master can be killed, paused, resumed and restarted one by one."""

    def __init__(self, folder: Path, cores: int, memory: str) -> None:
        self.folder, self._cores, self._memory = folder, cores, memory
        self.workers: list[SparkWorker] = []
        self._made, self._numbers = 0, threading.Lock()
        self._open = ExitStack()

    @classmethod
    def start(
        cls, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g", port: int | None = None
    ) -> SparkCluster:
        """Its whole life is in `folder`. `cores` and `memory` are what each worker may give to executors."""
        cluster = cls(folder, cores, memory)
        try:
            cluster.master = cluster._open.enter_context(SparkMaster.start(folder / "master", port=port))
            with ThreadPoolExecutor(max(1, workers)) as side_by_side:
                for made in [side_by_side.submit(cluster.add_worker) for _ in range(workers)]:
                    made.result()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    master: SparkMaster

    @property
    def url(self) -> str:
        """The master, as Spark wants it: `spark://127.0.0.1:7077`."""
        return self.master.url

    def add_worker(self) -> SparkWorker:
        """One more, once it is registered."""
        with self._numbers:
            number = self._made = self._made + 1
        folder = self.folder / f"worker-{number}"
        worker = SparkWorker.start(folder, self.master, cores=self._cores, memory=self._memory)
        self.workers.append(self._open.enter_context(worker))
        return worker

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.executors()]

    def stop(self) -> None:
        """Workers first, then the master."""
        self._open.close()


def spark_home() -> Path:
    """Spark's folder: the PySpark that is installed."""
    import pyspark

    return Path(pyspark.__file__).parent


def is_executor(pid: int) -> bool:
    return _EXECUTOR in (processes.command_line(pid) or b"")


def ask_master(ui_port: int) -> dict[str, Any] | None:
    """What the master on this machine says, asked at its page's port; None where none answers."""
    connection = http.client.HTTPConnection(HOST, ui_port, timeout=_ASK_SECONDS)
    try:
        connection.request("GET", "/json/")
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found if answer.status == 200 and "workers" in found else None


def _scala_version() -> str:
    """What Spark's scripts tell Java, which starts executors with it."""
    match = re.search(
        r"^\s*export SPARK_SCALA_VERSION=([\d.]+)", (spark_home() / "bin" / "load-spark-env.sh").read_text(), re.M
    )
    assert match is not None
    return match[1]
