"""Rows at a steady rate into a topic until its input ends; then prints how many. In a process of its own, so that it
shares no interpreter with what measures: python stream_load.py '{"servers": …, "topic": …, "rate": 2000}'"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Producer

from kafka_load import message
from stream_rows import row

_WAITING = 2_000_000  # rows that the broker has not taken, when it or its disk pauses
_EVERY = 0.005  # seconds between two handfuls of rows: far less than any epoch, and few requests for the broker


def main(given: Mapping[str, Any]) -> int:
    """How many rows were written."""
    # A row is on its way at once: waiting for others would count as latency.
    settings = {"linger.ms": 0, "acks": "all", "queue.buffering.max.messages": _WAITING}
    producer = Producer({"bootstrap.servers": given["servers"], **settings})
    make: Callable[[int, int], bytes] = row if given["rows"] == "timed" else lambda number, _: message(number)
    first, count = int(given.get("first", 0)), 0
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    began = time.monotonic()
    while not over.wait(_EVERY):
        due = round((time.monotonic() - began) * given["rate"])
        for number in range(first + count, first + due):
            producer.produce(given["topic"], key=f"{number % 10_000:08d}", value=make(number, time.time_ns()))
        count = due
        producer.poll(0)
    if producer.flush(30):
        raise SystemExit("rows were not delivered within 30 s")
    return count


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
