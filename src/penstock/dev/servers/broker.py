"""A real Kafka broker for development and tests: one Java process, on this machine only, in a folder of its own.

It is Apache Kafka itself in KRaft mode (broker and controller in one), from the locked jar set `kafka-broker`; nothing
is simulated. Listeners are bound to 127.0.0.1.

    with Broker.start(folder) as broker:
        producer = Producer({"bootstrap.servers": broker.servers})
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from penstock.dev.servers.archive import archive_options, keep_archive
from penstock.dev.servers.ports import HOST, answers_kafka, free_port
from penstock.dev.servers.process import end_process
from penstock.errors import DevelopmentError
from penstock.processes import has_running_thread
from penstock.spark.jars import jar_folder, jar_set
from penstock.spark.java import find_java

if TYPE_CHECKING:
    from penstock.dev.servers.security import SecurityFiles

_NODE = 1
_READY_SECONDS = 60.0  # two or three when idle; far longer on a machine busy with Spark
_POLL_SECONDS = 0.05
_STOP_SECONDS = 15.0  # a clean stop writes its recovery points and leaves in about one second
_FORMAT_SECONDS = 60.0
_TELLING = 20  # how many of the log's last lines go into an error

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


@dataclass(slots=True)
class Broker:
    """A started broker. `start` returns once it answers; every method returns once its effect is there."""

    folder: Path
    port: int
    controller_port: int
    heap: str = "1g"
    security: SecurityFiles | None = None
    sasl_port: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        security: SecurityFiles | None = None,
        heap: str = "1g",
    ) -> Broker:
        """Start a broker whose whole life is in `folder`; data found there is used again.

        `properties` go over the defaults. With `security` there is a second listener, `sasl_servers`, that wants TLS
        and a password. Raises `DevelopmentError` with the end of the broker's log when it does not come up.
        """
        broker = cls(
            folder=Path(folder).absolute(),
            port=port if port is not None else free_port(),
            controller_port=free_port(),
            heap=heap,
            security=security,
            sasl_port=free_port() if security is not None else None,
            properties=dict(properties or {}),
        )
        broker._prepare()
        broker._launch()
        return broker

    @property
    def servers(self) -> str:
        """Bootstrap servers of the plain listener."""
        return f"{HOST}:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """Bootstrap servers of the SASL_SSL listener; only where `security` was given."""
        if self.sasl_port is None:
            raise DevelopmentError(
                "This broker has no SASL_SSL listener.",
                safe="It goes on as it is.",
                to_do="Give Broker.start the files of penstock.dev.servers.security.make_security.",
            )
        return f"{HOST}:{self.sasl_port}"

    @property
    def log(self) -> Path:
        """Everything the broker wrote, over all its restarts."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """Process id of the running broker; `DevelopmentError` when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise self._failure("The Kafka broker is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it cleanly (SIGTERM), or by force when that takes too long. Does nothing if it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if end_process(process.pid, _STOP_SECONDS, gone=lambda: process.poll() is not None):
            keep_archive(find_java(), self._archive)

    def kill(self) -> None:
        """SIGKILL: what a power cut does to a broker, short of the page cache."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, then start it again on the same ports with the same data."""
        self.stop()
        self._launch()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, like a broker in a long garbage collection."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal reaches one thread after the other; one that still runs may answer a last request.
        while has_running_thread(self.pid):
            time.sleep(0.005)

    def resume(self) -> None:
        """SIGCONT: undo `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def detach(self) -> int:
        """Leave the broker running when this process ends; returns its pid."""
        atexit.unregister(self.kill)
        assert self._process is not None
        _detached.append(self._process)
        return self.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self.folder / "server.properties"
        text = "".join(f"{key}={_escape(value)}\n" for key, value in self._configuration().items())
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # may hold passwords
            file.write(text)
        jar_set("kafka-broker")
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(config)

    def _configuration(self) -> dict[str, str]:
        listeners = {"PLAINTEXT": self.port, "CONTROLLER": self.controller_port}
        if self.sasl_port is not None:
            listeners["SASL_SSL"] = self.sasl_port
        urls = {name: f"{name}://{HOST}:{port}" for name, port in listeners.items()}
        return {
            **DEFAULTS,
            "process.roles": "broker,controller",
            "node.id": str(_NODE),
            "controller.quorum.voters": f"{_NODE}@{HOST}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in listeners
            ),
            "listeners": ",".join(urls.values()),
            "advertised.listeners": ",".join(url for name, url in urls.items() if name != "CONTROLLER"),
            "log.dirs": str(self.folder / "data"),
            **(self.security.broker_properties() if self.security is not None else {}),
            **self.properties,
        }

    def _format(self, config: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = "x" + cluster[1:] if cluster.startswith("-") else cluster  # a leading dash would read as an option
        once = ["-Xmx64m", "-XX:TieredStopAtLevel=1", *archive_options(find_java())]
        command = self._java("kafka.tools.StorageTool", once, ["format", "-t", cluster, "-c", str(config)])
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_FORMAT_SECONDS, check=False
            )
        if done.returncode != 0:
            raise self._failure(f"Kafka could not format its storage (exit status {done.returncode}).")

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
            f"{jar_folder('kafka-broker')}/*",
            main,
            *arguments,
        ]

    def _launch(self) -> None:
        options = [f"-Xmx{self.heap}", *archive_options(find_java(), written=self._archive)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", options, [str(self.folder / "server.properties")]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the program, which then stops us in order
            )
        atexit.unregister(self.kill)
        atexit.register(self.kill)
        end = time.monotonic() + _READY_SECONDS
        while not answers_kafka(self.port):
            if self._process.poll() is not None:
                raise self._failure(f"The Kafka broker ended while starting (exit status {self._process.returncode}).")
            if time.monotonic() > end:
                self.kill()
                raise self._failure(f"The Kafka broker did not answer on port {self.port} in {_READY_SECONDS:.0f} s.")
            time.sleep(_POLL_SECONDS)

    def _failure(self, happened: str) -> DevelopmentError:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()[-_TELLING:]
        said = "".join(f"\n  {line}" for line in lines)
        return DevelopmentError(
            f"{happened} The end of its log:{said or ' it is empty.'}",
            safe=f"Its data in {self.folder / 'data'} is as the broker left it.",
            to_do=f"Read {self.log}; free the ports or the memory it asks for, or start it in another folder.",
        )


#: Kept so that a broker stopped later by this same process leaves no zombie behind.
_detached: list[subprocess.Popen[bytes]] = []


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
