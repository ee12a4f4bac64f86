"""Spark's daemon for Python workers, with the installed PySpark and workers that answer at once.

Python compiles the sources in Spark's archive of PySpark anew in every process, in half a second. Java holds each piece
of a task back until the one before is acknowledged, which the worker's kernel delays by up to 40 ms. (With Unix domain
sockets Spark's JVM remembers a file name for every `collect`, for ever.)
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any

MODULE = "penstock.spark.python_daemon"


def without_archives(path: Sequence[str]) -> list[str]:
    """`path` without the archives that the PySpark installed on the rest of it carries; as it is where none is."""
    rest = [entry for entry in path if not entry.endswith(".zip")]
    spec = PathFinder.find_spec("pyspark", rest)
    if spec is None or spec.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return list(path)
    archives = Path(spec.origin).resolve().parent / "python" / "lib"
    return [entry for entry in path if not (entry.endswith(".zip") and Path(entry).resolve().parent == archives)]


class _PromptSocket(io.RawIOBase):
    """The reading end of a socket whose bytes are acknowledged as soon as they are read. Closes it with itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._connection.fileno()

    def readinto(self, buffer: Any) -> int:
        # Linux resets it whenever it sees fit, so it is set for every read.
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._connection.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._connection.close()
        super().close()


def open_promptly(descriptor: int, mode: str = "r", buffering: int = -1, *others: Any) -> IO[Any]:
    """`os.fdopen`, but a TCP socket that is opened to be read acknowledges what it reads at once."""
    if mode == "rb" and buffering > 1 and hasattr(socket, "TCP_QUICKACK"):
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            return os.fdopen(descriptor, mode, buffering, *others)  # no socket
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            return io.BufferedReader(_PromptSocket(connection), buffering)
        connection.detach()
    return os.fdopen(descriptor, mode, buffering, *others)


class _PromptOs:
    fdopen = staticmethod(open_promptly)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def freezing(worker: Callable[..., int]) -> Callable[..., int]:
    """Spark's `worker`, which runs one task; what is there after the first is no garbage."""
    frozen = False

    def run(*arguments: Any) -> int:
        nonlocal frozen
        code = worker(*arguments)
        if not frozen:
            frozen = True
            gc.collect()
            gc.freeze()
        return code

    return run


def main() -> None:
    sys.path[:] = without_archives(sys.path)
    from pyspark import daemon

    vars(daemon)["os"] = _PromptOs()
    daemon.worker = freezing(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
