"""A real Kafka broker for development: one Java process, on this machine only, in a folder of its own.

It is Apache Kafka itself in KRaft mode (broker and controller in one), from the locked jar set `kafka-broker`; nothing
is simulated. Listeners are bound to 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import os
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from penstock.dev.server import HOST, Server, exchange, free_port
from penstock.supply.jars import jar_folder, jar_set
from penstock.supply.java import JavaHome, find_java

_JARS = "kafka-broker"
_FORMAT_SECONDS = 60.0
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # size, api key, api version, correlation id, no client id

#: What makes one node on a small machine quick to start, quick to notice an expired transaction, and light to keep.
#: Everything that decides how transactions behave is Kafka's default.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "auto.create.topics.enable": "false",  # a misspelt topic must be an error, as in production
        "num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # After SIGKILL the controller takes the same broker back only when its old session has ended, by default
        # after 9 seconds; a clean stop ends the session at once.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "400",
        "log.retention.hours": "24",
        "log.retention.check.interval.ms": "60000",
        "log.retention.bytes": str(4 << 30),  # per partition: a long benchmark must not fill the disk
        "log.segment.bytes": str(256 << 20),
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # 128 MiB by default, an eighth of this heap
        "socket.send.buffer.bytes": str(1 << 20),
        "socket.receive.buffer.bytes": str(1 << 20),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
    }
)


class Broker(Server):
    """A started broker."""

    name = "The Kafka broker"
    log_name = "broker.log"

    def __init__(
        self, folder: Path, port: int | None, properties: Mapping[str, str], heap: str, jars: str = _JARS
    ) -> None:
        super().__init__(folder, port)
        self.controller_port, self.cluster_id = free_port(), new_cluster_id()
        self.properties, self.heap, self.jars = dict(properties), heap, jars

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "1g",
        jars: str = _JARS,
    ) -> Self:
        """Start a broker whose whole life is in `folder`; data from an earlier start is used again. `properties`
        override the defaults; `jars` is the locked set that it runs from."""
        return cls(folder, port, properties or {}, heap, jars)._begin()

    @property
    def servers(self) -> str:
        """Bootstrap servers."""
        return f"{HOST}:{self.port}"

    def _prepare(self) -> None:
        config = self.folder / "server.properties"
        text = "".join(f"{key}={_escape(value)}\n" for key, value in self._configuration().items())
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # may hold passwords
            file.write(text)
        jar_set(self.jars)
        if not (self._data / "meta.properties").exists():
            self._format(config)

    def _listeners(self) -> dict[str, int]:
        return {"PLAINTEXT": self.port, "CONTROLLER": self.controller_port}

    def _configuration(self) -> dict[str, str]:
        urls = {name: f"{name}://{HOST}:{port}" for name, port in self._listeners().items()}
        return {
            **DEFAULTS,
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "listeners": ",".join(urls.values()),
            "advertised.listeners": ",".join(url for name, url in urls.items() if name != "CONTROLLER"),
            "log.dirs": str(self._data),
            **self.properties,
        }

    def _format(self, config: Path) -> None:
        once = ["-Xmx64m", "-XX:TieredStopAtLevel=1", *archive_options(find_java(), jars=self.jars)]
        arguments = ["format", "-t", self.cluster_id, "-c", str(config)]
        command = self._java("kafka.tools.StorageTool", once, arguments)
        self._run_once(command, _FORMAT_SECONDS, "Kafka could not format its storage")

    @property
    def _archive(self) -> Path:
        return self.folder / "classes.jsa"

    def _java(self, main: str, options: list[str], arguments: list[str]) -> list[str]:
        return [
            str(find_java().java),
            *options,
            "-XX:+UseParallelGC",  # no concurrent collector threads beside the work, on machines of two cores
            "-Xlog:disable",  # the virtual machine's own warnings, about archives that do not fit; not Kafka's log
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            "-cp",
            f"{jar_folder(self.jars)}/*",
            main,
            *arguments,
        ]

    def _command(self) -> list[str]:
        options = [f"-Xmx{self.heap}", *archive_options(find_java(), self._archive, self.jars)]
        return self._java("kafka.Kafka", options, [str(self.folder / "server.properties")])

    def _answers(self) -> bool:
        return answers_kafka(self.port)

    def _end(self) -> bool:
        was_running = self.running
        ended_by_itself = super()._end()
        if was_running and ended_by_itself:
            keep_archive(find_java(), self._archive, self.jars)
        return ended_by_itself


def new_cluster_id() -> str:
    """A name for a cluster, as Kafka wants it: 16 bytes in base64, without a dash in front, which is for options."""
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "x" + name[1:] if name.startswith("-") else name


def answers_kafka(port: int, timeout: float = 1.0) -> bool:
    """Whether a plain-text Kafka listener answers an ApiVersions request on `port`. A broker opens its listeners only
    after it has recovered its logs and joined the cluster, so it can serve then."""
    answer = exchange(port, _API_VERSIONS, 8, timeout)
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 7


# An archive of the broker's classes saves about a second at each start (class data sharing). The first broker that ends
# in good order writes it, later ones use it. Java ignores an archive that does not fit its own version or the jars.


def archive_path(java: JavaHome, jars: str = _JARS) -> Path:
    """Where the archive for this Java is or will be: beside the jars it was made from, so it goes when they go."""
    return jar_folder(jars) / f"java-{java.version}-{zlib.crc32(f'{java.home}:{java.built}'.encode()):08x}.jsa"


def archive_options(java: JavaHome, to_write: Path | None = None, jars: str = _JARS) -> list[str]:
    """Arguments for Java: use the archive, or else write a new one to `to_write` at the end."""
    archive = archive_path(java, jars)
    if archive.exists():
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    return [f"-XX:ArchiveClassesAtExit={to_write}"] if to_write is not None else []


def keep_archive(java: JavaHome, written: Path, jars: str = _JARS) -> None:
    """Put what a broker wrote at its end where the next one finds it. In one step: another may be starting."""
    with contextlib.suppress(OSError):  # none was written, or the folder is another user's: slower, not wrong
        written.replace(archive_path(java, jars))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
