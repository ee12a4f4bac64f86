"""A real schema registry: Apicurio, which speaks Confluent's interface. Fetched once through Ivy into the user's cache.

    with Registry.start() as registry:
        SchemaRegistryClient({"url": registry.url})

What is registered stays when it is stopped and started again. `Guard` is a door in front of it that asks for a
password, as one in a cloud does.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError

from penstock.dev.kafka import HOST, free_port
from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.storage.local import only_one
from penstock.supply.jars import SETTINGS, _ivy_jar
from penstock.supply.java import find_java
from tests.support.servers.server import Server

_VERSION = "3.0.9"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_IVY = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{_VERSION}" transitive="false" conf="default->*">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
#: Without the module's own description: its parent is missing from some repositories.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


def program() -> Path:
    """The folder with the registry's program."""
    target = user_cache() / "dev" / f"apicurio-{_VERSION}"
    with only_one(target.with_suffix(".lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
                unpacked = Path(scratch, "unpacked")
                with tarfile.open(_fetch(Path(scratch))) as archive:
                    archive.extractall(unpacked, filter="data")
                unpacked.replace(target)
    return target


def _fetch(scratch: Path) -> Path:
    (scratch / "ivy.xml").write_text(_IVY)
    (scratch / "settings.xml").write_text(_IVY_SETTINGS)
    command: list[str | Path] = [find_java().java, f"-Duser.home={scratch}", "-jar", _ivy_jar()]
    command += ["-settings", os.environ.get(SETTINGS) or scratch / "settings.xml"]
    command += ["-ivy", scratch / "ivy.xml", "-confs", "default", "-cache", scratch / "cache"]
    command += ["-retrieve", f"{scratch}/[artifact].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    archive = scratch / "apicurio-registry-app.tar.gz"
    if not archive.exists() or hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
        raise DevelopmentError(
            f"The schema registry for tests could not be fetched: {done.stdout[-300:]}",
            safe="The cache is unchanged.",
            to_do=f"See that this machine reaches a Maven repository, or set {SETTINGS}.",
        )
    return archive


class Registry(Server):
    name = "The schema registry"

    @classmethod
    def start(cls, folder: Path | None = None) -> Self:
        return cls(folder)._begin()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def _prepare(self) -> None:
        program()

    def _command(self) -> list[str]:
        settings = {
            "quarkus.http.port": self.port, "quarkus.http.host": HOST, "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2", "apicurio.datasource.url": f"jdbc:h2:file:{self.folder}/registry",
        }  # fmt: skip
        java = [str(find_java().java), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return [*java, *options, "-jar", str(program() / f"apicurio-registry-app-{_VERSION}-runner.jar")]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Guard:
    """Passes on requests with this password, answers 401 to all others, and counts those that it passed on."""

    def __init__(self, registry: Registry, user: str, password: str) -> None:
        wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.passed = 0
        guard = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Authorization") != wanted:
                    return self._answer(401, b'{"error_code": 401, "message": "who are you?"}')
                guard.passed += 1
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                asked = urllib.request.Request(f"http://{HOST}:{registry.port}{self.path}", body, method=self.command)
                asked.add_header("Content-Type", self.headers.get("Content-Type", "application/json"))
                try:
                    with urllib.request.urlopen(asked, timeout=10) as answer:
                        self._answer(answer.status, answer.read())
                except HTTPError as error:
                    self._answer(error.code, error.read())

            do_POST = do_GET  # noqa: N815

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer((HOST, free_port()), Handler)
        self.url = registry.url.replace(str(registry.port), str(self._server.server_port))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
