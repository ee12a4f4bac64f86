"""Ports on this machine: picking a free one, and asking whether a Kafka broker answers on it."""

from __future__ import annotations

import random
import socket
import struct

from penstock.errors import DevelopmentError

HOST = "127.0.0.1"

#: Below the range from which systems take ports for outgoing connections. Inside it, a client that keeps trying to
#: reach a stopped broker can be given the broker's own port, connect to itself, and keep the broker from coming back.
_RANGE = range(20_000, 30_000)

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # size, api key, api version, correlation id, no client id
_RANDOM = random.SystemRandom()  # not the shared generator: programs seed that one, and would pick the same ports


def is_free(port: int) -> bool:
    """Whether a server could bind `port` right now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that is free now; random, so that two processes asking at once hardly ever get the same."""
    for port in _RANDOM.sample(_RANGE, 200):
        if is_free(port):
            return port
    raise DevelopmentError(
        f"None of 200 ports tried between {_RANGE.start} and {_RANGE.stop} is free.",
        safe="Nothing was started.",
        to_do="Stop what holds them (see `ss -ltn`), or give a port yourself.",
    )


def answers_kafka(port: int, timeout: float = 1.0) -> bool:
    """Whether a plain-text Kafka listener answers an ApiVersions request on `port`.

    A broker opens its listeners only after it has recovered its logs and joined the cluster: who answers can serve.
    """
    try:
        with socket.create_connection((HOST, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(_API_VERSIONS)
            answer = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 7
