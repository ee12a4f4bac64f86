"""A real Hadoop for tests: HDFS, a YARN resource manager and node managers, each a Java process of its own.

They are Hadoop's own servers, from the locked jar sets `hdfs` and `yarn` and what PySpark ships; nothing is simulated.
All are bound to 127.0.0.1.

    with Hadoop.start(folder, nodes=2) as hadoop:
        subprocess.run(["spark-submit", "--master", "yarn", …], env={**os.environ, **hadoop.environment()})

It asks nobody who he is, as Hadoop without Kerberos does: whoever reaches its ports runs programs as the user who has
started it. So it lives as long as a test, and there is no command that leaves one running.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from penstock.dev.kafka import HOST, free_port
from penstock.processes import command_line, end_session
from penstock.supply.jars import jar_set
from penstock.supply.java import find_java
from tests.support.servers.server import Server, Stoppable

_ASK_SECONDS = 5.0

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n
"""

#: What lets small servers share a small machine. Everything that decides how an application is started again is YARN's
#: default, or said by whoever starts it.
DEFAULTS: Mapping[str, str] = {
    "dfs.replication": "1",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",  # a disk that is nearly full is no reason here
    "yarn.nodemanager.delete.debug-delay-sec": "3600",  # logs of containers stay to be read
    # Hadoop would rather look up names, and a machine without a network has none.
    "hadoop.security.token.service.use_ip": "true",
}


class HadoopServer(Server):
    """One of Hadoop's servers. Settings of its own come on top of those in the folder `conf` that all share."""

    main: ClassVar[str]
    ready_seconds = 300.0  # some five seconds of processor time each, and several start at once
    heap = "384m"

    def __init__(self, folder: Path, port: int, conf: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, port)
        self.conf, self.settings = conf, dict(settings)

    def _prepare(self) -> None:
        (self.folder / "log4j2.properties").write_text(_LOGGING)

    def _command(self) -> Sequence[str]:
        return self._java()

    def _java(self, *arguments: str) -> list[str]:
        java = find_java()
        own = [part for key, value in self.settings.items() for part in ("-D", f"{key}={value}")]
        # Containers get the node manager's JAVA_HOME.
        return [
            "env", f"JAVA_HOME={java.home}", f"HADOOP_CONF_DIR={self.conf}",
            str(java.java), f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-Djava.net.preferIPv4Stack=true",
            "-cp", _class_path(self.conf), self.main, *own, *arguments,
        ]  # fmt: skip


class Hdfs(HadoopServer):
    """A name node and a data node in one process, which is enough of HDFS for small machines. Ready when the one counts
    the other and has left its safe mode."""

    name = "HDFS"
    main = "org.apache.hadoop.test.MiniDFSClusterManager"

    def __init__(self, folder: Path, port: int, conf: Path) -> None:
        super().__init__(folder, free_port(), conf, {"hdfs.minidfs.basedir": str(folder / "data")})
        self.address = port

    def _command(self) -> Sequence[str]:
        fresh = [] if self._data.exists() else ["-format"]
        return self._java("-datanodes", "1", "-nnport", str(self.address), "-httpport", str(self.port), *fresh)

    def _answers(self) -> bool:
        told = _ask(self.port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
        return any(one["NumLiveDataNodes"] > 0 and one["FSState"] == "Operational" for one in told.get("beans", ()))


class ResourceManager(HadoopServer):
    name = "The YARN resource manager"
    main = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"

    def _answers(self) -> bool:
        return bool(self.ask("info").get("clusterInfo", {}).get("state") == "STARTED")

    def ask(self, path: str) -> dict[str, Any]:
        """What its REST API says below `/ws/v1/cluster`; empty where it does not answer."""
        return _ask(self.port, f"/ws/v1/cluster/{path}")


class NodeManager(HadoopServer):
    """Ready when the resource manager counts it. Its containers are sessions of their own, see `containers`."""

    name = "A YARN node manager"
    main = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"

    def __init__(self, folder: Path, conf: Path, resource_manager: int) -> None:
        ports = {one: free_port() for one in ("address", "localizer.address", "webapp.address")}
        settings = {f"yarn.nodemanager.{name}": f"{HOST}:{port}" for name, port in ports.items()}
        settings["yarn.nodemanager.local-dirs"] = str(folder / "local")
        settings["yarn.nodemanager.log-dirs"] = str(folder / "logs")
        super().__init__(folder, ports["address"], conf, settings)
        self._resource_manager = resource_manager

    def _abandon(self) -> None:
        super()._abandon()
        for leader in self.containers.values():  # of a node manager that was killed, they outlive it
            if os.fsencode(self.folder) in (command_line(leader) or b""):
                end_session(leader, 0)

    @property
    def containers(self) -> dict[str, int]:
        """The containers that it runs, and of each the process that leads its session."""
        found = {}
        for file in (self.folder / "local" / "nmPrivate").glob("*/*/*.pid"):
            text = file.read_text().strip()
            if text.isdecimal():
                found[file.stem] = int(text)
        return found

    def _answers(self) -> bool:
        nodes = (_ask(self._resource_manager, "/ws/v1/cluster/nodes").get("nodes") or {}).get("node", ())
        return any(one["id"].endswith(f":{self.port}") and one["state"] == "RUNNING" for one in nodes)


class Hadoop(Stoppable):
    """HDFS and YARN, running once made by `start`."""

    def __init__(self, folder: Path, nodes: int, settings: Mapping[str, str]) -> None:
        self.folder, self.conf = folder.absolute(), folder.absolute() / "conf"
        self._ports = {name: free_port() for name in _PORTS}
        self._settings = dict(settings)
        web = self._ports["yarn.resourcemanager.webapp.address"]
        self.storage = Hdfs(self.folder / "hdfs", free_port(), self.conf)
        self.resource_manager = ResourceManager(self.folder / "resources", web, self.conf, {})
        self.nodes = [NodeManager(self.folder / f"node-{n}", self.conf, web) for n in range(1, nodes + 1)]

    @classmethod
    def start(cls, folder: Path, *, nodes: int = 1, settings: Mapping[str, str] | None = None) -> Hadoop:
        """Start all servers in `folder`. `settings` go over the defaults, in Hadoop's names, whichever file they
        belong to. Raises `DevelopmentError` with the end of a server's log where one does not come up."""
        hadoop = cls(folder, nodes, settings or {})
        hadoop._configure()
        jar_set("hdfs"), jar_set("yarn")
        try:
            # Side by side: each waits for those it needs.
            with ThreadPoolExecutor(len(hadoop.servers)) as pool:
                list(pool.map(lambda server: server._begin(), hadoop.servers))
        except BaseException:
            hadoop.stop()
            raise
        return hadoop

    @property
    def servers(self) -> list[HadoopServer]:
        return [self.storage, self.resource_manager, *self.nodes]

    @property
    def hdfs(self) -> str:
        """The address of its file system, which is also the default one."""
        return f"hdfs://{HOST}:{self.storage.address}"

    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to find it."""
        return {"HADOOP_CONF_DIR": str(self.conf), "JAVA_HOME": str(find_java().home)}

    def application(self, id: str) -> dict[str, Any]:
        """What the resource manager says of an application."""
        found: dict[str, Any] = self.resource_manager.ask(f"apps/{id}").get("app", {})
        return found

    def attempts(self, id: str) -> list[dict[str, Any]]:
        """Its attempts, the oldest first; each names its container and node."""
        found = (self.resource_manager.ask(f"apps/{id}/appattempts").get("appAttempts") or {}).get("appAttempt", ())
        return sorted(found, key=lambda one: int(one["id"]))

    def stop(self) -> None:
        """End all servers; those that run containers first."""
        for server in reversed(self.servers):
            server.stop()

    def _configure(self) -> None:
        chosen = {**DEFAULTS, **{name: f"{HOST}:{port}" for name, port in self._ports.items()}}
        chosen["fs.defaultFS"] = self.hdfs
        chosen["hadoop.tmp.dir"] = str(self.folder / "tmp")
        chosen["yarn.nodemanager.user-home-dir"] = str(self.folder / "home")  # what containers take for HOME
        chosen |= self._settings
        self.conf.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = "".join(
            f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>\n" for k, v in chosen.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml", "capacity-scheduler.xml"):
            (self.conf / name).write_text(f"<configuration>\n{text}</configuration>\n")


_PORTS = (
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.webapp.address",
)


def _class_path(conf: Path) -> str:
    import pyspark

    jars = [*jar_set("hdfs"), *jar_set("yarn"), Path(pyspark.__file__).parent / "jars" / "*"]
    return ":".join(str(one) for one in (conf, *jars))


def _ask(port: int, path: str) -> dict[str, Any]:
    """The JSON that a server answers; empty where it does not answer yet."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ASK_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = json.loads(answer.read()) if answer.status == http.client.OK else {}
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return body if isinstance(body, dict) else {}
