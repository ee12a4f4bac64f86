"""The development broker as a child of a test: started, killed, paused and restarted, in a folder of its own."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from penstock.dev.kafka import (
    HOST,
    JARS,
    answers_kafka,
    broker_command,
    configuration,
    free_port,
    new_cluster_id,
    prepare,
)
from penstock.supply.jars import jar_folder
from penstock.supply.java import JavaHome, find_java
from tests.support.servers.server import Server

_FORMAT_SECONDS = 60.0


class Broker(Server):
    name = "The Kafka broker"
    log_name = "broker.log"

    def __init__(
        self, folder: Path, port: int | None, properties: Mapping[str, str], heap: str, jars: str = JARS
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
        jars: str = JARS,
    ) -> Self:
        """Start a broker whose whole life is in `folder`; data from an earlier start is used again. `properties`
        override the defaults; `jars` is the locked set that it runs from."""
        return cls(folder, port, properties or {}, heap, jars)._begin()

    @property
    def servers(self) -> str:
        return f"{HOST}:{self.port}"

    def _prepare(self) -> None:
        def run(command: list[str]) -> None:
            self._run_once(command, _FORMAT_SECONDS, "Kafka could not format its storage")

        options = archive_options(find_java(), jars=self.jars)
        prepare(self.folder, self._configuration(), self.cluster_id, run, options, self.jars)

    def _listeners(self) -> dict[str, int]:
        return {"PLAINTEXT": self.port, "CONTROLLER": self.controller_port}

    def _configuration(self) -> dict[str, str]:
        return configuration(self.folder, self._listeners()) | self.properties

    @property
    def _archive(self) -> Path:
        return self.folder / "classes.jsa"

    def _command(self) -> list[str]:
        options = [f"-Xmx{self.heap}", *archive_options(find_java(), self._archive, self.jars)]
        return broker_command(self.folder, options, self.jars)

    def _answers(self) -> bool:
        return answers_kafka(self.port)

    def _end(self) -> bool:
        was_running = self.running
        ended_by_itself = super()._end()
        if was_running and ended_by_itself:
            keep_archive(find_java(), self._archive, self.jars)
        return ended_by_itself


# An archive of the broker's classes saves about a second at each start (class data sharing). The first broker that ends
# in good order writes it, later ones use it. Java ignores an archive that does not fit its own version or the jars.


def archive_path(java: JavaHome, jars: str = JARS) -> Path:
    """Where the archive for this Java is or will be: beside the jars it was made from, so it goes when they go."""
    return jar_folder(jars) / f"java-{java.version}-{zlib.crc32(f'{java.home}:{java.built}'.encode()):08x}.jsa"


def archive_options(java: JavaHome, to_write: Path | None = None, jars: str = JARS) -> list[str]:
    """Arguments for Java: use the archive, or else write a new one to `to_write` at the end."""
    archive = archive_path(java, jars)
    if archive.exists():
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    return [f"-XX:ArchiveClassesAtExit={to_write}"] if to_write is not None else []


def keep_archive(java: JavaHome, written: Path, jars: str = JARS) -> None:
    """Put what a broker wrote at its end where the next one finds it. In one step: another may be starting."""
    with contextlib.suppress(OSError):  # none was written, or the folder is another user's: slower, not wrong
        written.replace(archive_path(java, jars))
