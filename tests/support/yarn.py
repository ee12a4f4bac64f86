"""A test's job on YARN: submitted in cluster mode, watched through the resource manager, its containers signalled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from penstock import processes
from penstock.config.levels import OPTIONS_VARIABLE
from penstock.supply.jars import jar_set
from tests.support.fault_case import SCRIPT, Case
from tests.support.processes import state
from tests.support.servers.hadoop import Hadoop, NodeManager
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent

#: A node that says nothing for so long is lost, and with it the application master on it. Masters themselves have
#: YARN's default: that clock runs from their launch, and a busy machine takes long to start one. Their home is no place
#: to write.
SETTINGS = {
    "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
    "yarn.resourcemanager.am.max-attempts": "9",
    "yarn.nodemanager.user-home-dir": "/proc",
}


def spark_settings() -> dict[str, str]:
    """What a job on this YARN needs said: Spark is on all its machines, which are this one, and so is Python."""
    path = f"{ROOT / 'src'}"
    return {
        "spark.yarn.jars": f"local:{SPARK}/jars/*",
        "spark.yarn.maxAppAttempts": "9",
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.yarn.appMasterEnv.PYTHONPATH": path,
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
    }


def client_environment(hadoop: Hadoop) -> dict[str, str]:
    """For a driver that is a process of the test's."""
    options = {"spark.master": "yarn", "spark.driver.host": "127.0.0.1", **spark_settings()}
    return {
        **hadoop.environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        OPTIONS_VARIABLE: json.dumps(options),
    }


@dataclass(frozen=True)
class Application:
    """One application in cluster mode."""

    hadoop: Hadoop
    id: str
    events: Path

    @classmethod
    def submit(cls, hadoop: Hadoop, case: Case, environment: Mapping[str, str]) -> Application:
        """`spark-submit --deploy-mode cluster`. The connector comes with it: the driver has no cache of ours."""
        events = case.folder / "events.jsonl"
        own = {"PENSTOCK_EVENTS": str(events), **environment}
        settings = spark_settings() | {f"spark.yarn.appMasterEnv.{name}": value for name, value in own.items()}
        done = subprocess.run(
            [
                str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster",
                "--driver-memory", "512m", "--jars", ",".join(map(str, jar_set("spark-kafka"))),
                "--conf", "spark.yarn.submit.waitAppCompletion=false",
                *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
                str(SCRIPT), str(case.config.write(case.folder / "config.json")),
            ],
            env={**os.environ, **hadoop.environment(), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = re.search(r"Submitted application (application_\d+_\d+)", done.stderr)
        assert found is not None, f"spark-submit ended with {done.returncode}\n{done.stderr[-4000:]}"
        return cls(hadoop, found[1], events)

    def attempt(self, number: int) -> tuple[NodeManager, str]:
        """Node and container of the master of that attempt, once it runs."""

        def launched() -> tuple[NodeManager, str] | None:
            name = f"{self.id.replace('application', 'container')}_{number:02d}_000001"
            return next(((node, name) for node in self.hadoop.nodes if name in node.containers), None)

        return until(launched, lambda: f"attempt {number}\n{self.tail()}", 300)

    def told(self, name: str) -> list[dict[str, Any]]:
        """What all attempts have said of themselves, one after the other."""
        if not self.events.exists():
            return []
        lines = [json.loads(line) for line in self.events.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [one for one in lines if one["event"] == name]

    def output(self, node: NodeManager, container: str) -> str:
        folder = node.folder / "logs" / self.id / container
        return "\n".join(file.read_text(errors="replace") for file in sorted(folder.glob("std*")))

    def tail(self, lines: int = 40) -> str:
        """The end of what every container has written, for errors."""
        found = [f"{self.hadoop.application(self.id)}"]
        for node in self.hadoop.nodes:
            for folder in sorted((node.folder / "logs" / self.id).glob("*_000001")):
                found += [f"== {folder.name}", *self.output(node, folder.name).splitlines()[-lines:]]
        return "\n".join(found)

    def stop(self) -> str:
        """SIGTERM to the program of the newest attempt, as a process manager would; what YARN says of its end."""
        node, container = self.attempt(len(self.hadoop.attempts(self.id)))
        [program] = [pid for pid in processes.session_members(node.containers[container]) if _is_program(pid)]
        os.kill(program, signal.SIGTERM)
        until(lambda: self.hadoop.application(self.id).get("state") == "FINISHED", self.tail, 120)
        return str(self.hadoop.application(self.id)["finalStatus"])


def _is_program(pid: int) -> bool:
    words = (processes.command_line(pid) or b"").split(b"\0")
    return len(words) > 1 and words[1] == os.fsencode(SCRIPT.name)


def send(leader: int, number: signal.Signals) -> None:
    """A signal to every process of a container; for SIGSTOP and SIGKILL until all have followed."""

    def left() -> list[int]:
        gone = "T" if number is signal.SIGSTOP else ""
        return [pid for pid in processes.session_members(leader) if not gone or state(pid) != gone]

    def followed() -> bool:
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return number is signal.SIGCONT or not left()

    until(followed, f"the container of {leader} to follow {number.name}", 30)
