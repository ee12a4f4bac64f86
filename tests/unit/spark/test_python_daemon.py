"""Which archives a worker goes without: those of the PySpark that is installed beside it, and no others. And that it
keeps nobody waiting."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from penstock.spark.python_daemon import freezing, open_promptly, without_archives

ARCHIVES = sorted(str(path) for path in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))


def test_the_installed_one_is_used() -> None:
    assert ARCHIVES
    assert without_archives([*ARCHIVES, "/job.zip", *sys.path]) == ["/job.zip", *sys.path]


def test_without_an_installed_one_nothing_changes() -> None:
    path = [*ARCHIVES, "/job.zip", "/elsewhere"]
    assert without_archives(path) == path


def test_another_spark_s_archive_stays() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", *sys.path]
    assert without_archives(path) == path


def test_the_daemon_finds_pyspark_outside_its_archive() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from penstock.spark import python_daemon as d\n"
        "sys.path[:] = d.without_archives(sys.path); import pyspark.daemon; print(pyspark.daemon.__file__)"
    )
    command = [sys.executable, "-c", code, *ARCHIVES]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(Path(pyspark.__file__).parent / "daemon.py")


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def test_what_is_sent_is_read_in_whatever_pieces(connected: tuple[socket.socket, socket.socket]) -> None:
    one, other = connected
    sent = os.urandom(1_000_000)

    def send() -> None:
        for first in range(0, len(sent), 77_777):
            one.sendall(sent[first : first + 77_777])
        one.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    with open_promptly(os.dup(other.fileno()), "rb", 65536) as file:
        read = file.read(5) + file.read(300_000)
        held = bytearray(200_000)
        assert file.readinto(held) == len(held)  # type: ignore[attr-defined]
        read += bytes(held) + file.read()
        assert file.read(1) == b""
    sender.join()
    assert read == sent


def test_closing_the_reader_leaves_the_connection_open(connected: tuple[socket.socket, socket.socket]) -> None:
    """As Spark does after each task: it reads from a copy of the descriptor."""
    one, other = connected
    for _ in range(3):
        one.sendall(b"task")
        copied = os.dup(other.fileno())
        with open_promptly(copied, "rb", 65536) as file:
            assert file.fileno() == copied
            assert file.read(4) == b"task"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copied)
    other.sendall(b"done")
    assert one.recv(4) == b"done"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux can be told")
def test_what_is_read_is_acknowledged_at_once(connected: tuple[socket.socket, socket.socket]) -> None:
    one, other = connected
    with open_promptly(os.dup(other.fileno()), "rb", 65536) as file:
        for _ in range(20):
            one.sendall(b"task")
            file.read(4)
            other.sendall(b"done")  # an answer makes Linux put acknowledgements off again
            one.recv(4)
            one.sendall(b"more")
            file.read(4)
            assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def test_other_files_are_opened_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"text")
    with open_promptly(os.open(file, os.O_RDONLY), "rb", 65536) as opened:
        assert opened.read() == b"text"
    with open_promptly(os.open(file, os.O_WRONLY), "wb", 4) as opened:
        opened.write(b"more")
    assert file.read_bytes() == b"more"
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"unix")
        with open_promptly(os.dup(other.fileno()), "rb", 65536) as opened:
            assert opened.read(4) == b"unix"


def test_a_worker_is_frozen_once_after_its_first_task() -> None:
    before = gc.get_freeze_count()
    run = freezing(lambda sock, authenticated: 7 if authenticated else 0)
    try:
        assert run(None, False) == 0
        first = gc.get_freeze_count()
        assert first > before
        kept = [object() for _ in range(10)]
        assert run(None, True) == 7
        assert gc.get_freeze_count() <= first, "what comes later can become garbage"
        assert kept
    finally:
        gc.unfreeze()
