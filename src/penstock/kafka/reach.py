"""Connecting to a cluster once, to see whether it can be done and why not."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.kafka import faults
from penstock.kafka.librdkafka import Handle

SECONDS = 10.0


def reach(servers: str, settings: Mapping[str, str], topic: str | None, seconds: float = SECONDS) -> bool:
    """Connect as the writers will; whether `topic` exists (True if none is named). Raises `AccessDenied` or
    `SystemUnavailable` with the client's own reason."""
    seen: list[tuple[int, str]] = []
    plain = {name: value for name, value in settings.items() if name not in ("transaction.timeout.ms",)}
    handle = Handle(plain, lambda row: None, lambda code, reason: seen.append((code, reason)))
    started = time.monotonic()
    try:
        while True:
            code, count = handle.partitions(topic, 0.5) if topic else (handle.reach(0.5), 1)
            if code == 0 and count:
                return True
            if code in (faults.UNKNOWN_TOPIC_OR_PARTITION, faults.UNKNOWN_TOPIC):
                return False
            handle.poll(0)
            refused = [trouble for trouble in seen if trouble[0] in (faults.AUTHENTICATION, faults.SSL)]
            waited = time.monotonic() - started
            if refused or code in faults.DENIED or waited > seconds:
                reasons = refused or [t for t in seen if t[0] != faults.ALL_BROKERS_DOWN]
                why, text = reasons[0] if reasons and code not in faults.DENIED else (code, handle.text(code))
                raise faults.from_code(
                    why, text, servers=servers, doing="connecting", topic=topic or "", seconds=waited
                )
    finally:
        handle.destroy()
