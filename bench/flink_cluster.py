"""A real Flink cluster on this machine only: a JobManager, TaskManagers, and its SQL client to submit jobs with."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from flink_home import bring_flink
from penstock.dev.kafka import HOST, free_port
from penstock.errors import ControlError, DevelopmentError
from penstock.ops.server.client import Client
from penstock.supply.jars import jar_set
from penstock.supply.java import find_java
from servers import Server

_SUBMIT_SECONDS = 180.0
_POLL_SECONDS = 0.02

#: As large as Penstock's processes become together; little of it is kept for operators that none of these jobs has.
MEMORY: Mapping[str, str] = {
    "jobmanager.memory.process.size": "1600m",
    "taskmanager.memory.process.size": "2560m",
    "taskmanager.memory.managed.fraction": "0.1",
}


class FlinkInstall:
    """The programs of Flink with the jars that its Python package lacks, and a configuration of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = bring_flink()
        self.lib, self.opt, self.conf, self.log = (folder / name for name in ("lib", "opt", "conf", "log"))
        for made in (self.lib, self.opt, self.log):
            made.mkdir(parents=True)
        connector, gateway = jar_set("flink")
        for place, more in ((self.lib, connector), (self.opt, gateway)):
            for jar in [*(self.home / place.name).glob("*.jar"), more]:
                (place / jar.name).symlink_to(jar)
        shutil.copytree(self.home / "conf", self.conf)

    def configure(self, settings: Mapping[str, str]) -> None:
        """`settings` over those that Flink ships."""
        place = self.conf / "config.yaml"
        place.write_text(yaml.safe_dump({**_flat(yaml.safe_load(place.read_text())), **settings}))

    def command(self, program: str, *arguments: str) -> list[str]:
        """`env` first, because servers are started with the environment of this process. Each becomes Java itself, so
        that its number is the JVM's."""
        environment = {
            "JAVA_HOME": find_java().home,
            "FLINK_LIB_DIR": self.lib,
            "FLINK_OPT_DIR": self.opt,
            "FLINK_CONF_DIR": self.conf,
            "FLINK_LOG_DIR": self.log,
            "FLINK_PID_DIR": self.folder,
        }
        given = [f"{name}={value}" for name, value in environment.items()]
        return ["env", *given, str(self.home / "bin" / program), *arguments]


class JobManager(Server):
    """Its port is that of the REST server."""

    name = "Flink's JobManager"

    def __init__(self, install: FlinkInstall) -> None:
        super().__init__(install.folder / "jobmanager")
        self._install = install
        self.client = Client(f"{HOST}:{self.port}", None)

    def _prepare(self) -> None:
        """Nothing: the whole cluster has one configuration."""

    def _command(self) -> Sequence[str]:
        return self._install.command("jobmanager.sh", "start-foreground")

    def _answers(self) -> bool:
        with contextlib.suppress(ControlError):
            return "taskmanagers" in self.client.ask("GET", "/overview")
        return False


class TaskManager(Server):
    """Up once the JobManager knows it."""

    name = "Flink's TaskManager"

    def __init__(self, install: FlinkInstall, number: int, client: Client) -> None:
        super().__init__(install.folder / f"taskmanager-{number}")
        self._install, self._client, self.id = install, client, f"taskmanager-{number}"

    def _prepare(self) -> None:
        """Nothing, as above."""

    def _command(self) -> Sequence[str]:
        own = (f"taskmanager.resource-id={self.id}", f"taskmanager.rpc.port={self.port}")
        return self._install.command("taskmanager.sh", "start-foreground", *(one for key in own for one in ("-D", key)))

    def _answers(self) -> bool:
        with contextlib.suppress(ControlError):
            return self.id in [one["id"] for one in self._client.ask("GET", "/taskmanagers")["taskmanagers"]]
        return False


class FlinkCluster:
    """A running cluster, made by `flink_cluster`."""

    def __init__(self, install: FlinkInstall, manager: JobManager, workers: Sequence[TaskManager]) -> None:
        self._install, self._manager, self._workers = install, manager, workers
        self.client = manager.client

    @property
    def roots(self) -> list[int]:
        """The processes that live."""
        return [one.pid for one in (self._manager, *self._workers) if one.running]

    def submit(self, sql: str) -> str:
        """Hand the statements to Flink's SQL client; the id of the job that the last one started."""
        script = self._install.folder / "job.sql"
        script.write_text(sql)
        command = self._install.command("sql-client.sh", "-f", str(script))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SUBMIT_SECONDS, cwd=self._install.folder,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found = re.findall(r"Job ID: ([0-9a-f]{32})", done.stdout)
        if not found:
            raise DevelopmentError(
                f"Flink's SQL client started no job (exit status {done.returncode}):\n"
                f"{done.stdout[-4000:]}{done.stderr[-2000:]}",
                safe="Nothing was written.",
                to_do="Read what it says above.",
            )
        return str(found[-1])

    def is_running(self, job: str) -> bool:
        """Whether each of its tasks runs. A job that failed is an error."""
        told = self.client.ask("GET", f"/jobs/{job}")
        if told["state"] == "FAILED":
            raise DevelopmentError(f"Flink's job failed: {self._why(job)}", safe="", to_do="")
        return told["state"] == "RUNNING" and all(one["status"] == "RUNNING" for one in told["vertices"])

    def busiest(self, job: str) -> TaskManager:
        """The TaskManager with the most tasks of the job."""
        counts: dict[str, int] = {}
        for vertex in self.client.ask("GET", f"/jobs/{job}")["vertices"]:
            for one in self.client.ask("GET", f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]:
                counts[one["taskmanager-id"]] = counts.get(one["taskmanager-id"], 0) + 1
        busy = max(counts, key=lambda worker: counts[worker])
        return next(one for one in self._workers if one.id == busy)

    def cancel(self, job: str) -> None:
        """End it, and wait for that."""
        self.client.ask("PATCH", f"/jobs/{job}?mode=cancel")
        while self.client.ask("GET", f"/jobs/{job}")["state"] not in ("CANCELED", "FAILED", "FINISHED"):
            time.sleep(_POLL_SECONDS)

    def _why(self, job: str) -> str:
        told: dict[str, Any] = self.client.ask("GET", f"/jobs/{job}/exceptions")
        entries = told.get("exceptionHistory", {}).get("entries", [])
        return "\n".join(str(one.get("stacktrace", ""))[:2000] for one in entries[:2]) or "it does not say why."


@contextmanager
def flink_cluster(folder: Path, *, workers: int, settings: Mapping[str, str]) -> Iterator[FlinkCluster]:
    """A cluster of so many TaskManagers, all started at once; all of it in `folder`, which must not exist. Everything
    is gone at the end."""
    install = FlinkInstall(folder)
    manager = JobManager(install)
    servers: list[Server] = [manager, *(TaskManager(install, n + 1, manager.client) for n in range(workers))]
    install.configure({**_places(folder, manager.port), **MEMORY, **settings})
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(Server._begin, servers))
        yield FlinkCluster(install, manager, [one for one in servers if isinstance(one, TaskManager)])


def _places(folder: Path, port: int) -> dict[str, str]:
    """Where the processes of a cluster find each other, and where they keep files."""
    scratch = folder / "scratch"
    scratch.mkdir()
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.rpc.port": str(free_port()),
        "jobmanager.bind-host": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": str(port),
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "io.tmp.dirs": str(scratch),
    }


def _flat(nested: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`: both are ways to write Flink's configuration, but not at once for one key."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat.update(_flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value})
    return flat
