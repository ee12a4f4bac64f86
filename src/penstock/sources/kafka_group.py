"""Positions of committed epochs, told to a Kafka consumer group so that ordinary lag tools see them.

They are a mirror, never the truth: Spark's checkpoint decides where a job goes on. So everything here is best effort,
beside the epoch, and a broker that goes on refusing is mentioned once in the log and asked again later.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

#: Seconds between two updates: lag tools look every few seconds, and an epoch must not cost a request.
PAUSE = 1.0
#: Seconds a request may take: long enough for a group coordinator to move, and nobody waits for it.
PATIENCE = 10.0
#: Failures in a row before it is worth a line: a group's coordinator may move, or be new and still loading.
PATIENT_TRIES = 3

Positions = Mapping[str, Mapping[str, int]]
Send = Callable[[str, Positions], None]


class GroupPublisher:
    """Sends the newest positions of one group from a thread of its own; older ones that were not sent are dropped."""

    def __init__(self, send: Send, group: str, *, pause: float = PAUSE) -> None:
        self._send = send
        self._group = group
        self._pause = pause
        self._newest: Positions | None = None
        self._there = threading.Condition()
        self._failures = 0
        self._thread: threading.Thread | None = None

    def publish(self, positions: Positions) -> None:
        """Returns at once and never raises."""
        with self._there:
            self._newest = positions
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"penstock-group-{self._group}", daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._there.notify()

    def flush(self) -> None:
        """Send what is waiting, in the calling thread; the last epoch of a job that ends is seen that way."""
        with self._there:
            positions, self._newest = self._newest, None
        if positions is None:
            return
        try:
            self._send(self._group, positions)
            self._failures = 0
        except Exception as error:
            self._failures += 1
            with self._there:
                self._newest = self._newest or positions  # tried again after the pause, unless newer ones came
            if self._failures == PATIENT_TRIES:
                log.warning(
                    "positions could not be told to consumer group %s, lag tools will not see this job: %s",
                    self._group,
                    error,
                )

    def _run(self) -> None:
        while True:
            with self._there:
                while self._newest is None:
                    self._there.wait()
            self.flush()
            time.sleep(self._pause)


def librdkafka_sender(settings: Mapping[str, str]) -> Send:
    """Sends through one kept connection, opened with the first positions."""
    client: list[Any] = []

    def send(group: str, positions: Positions) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
        from confluent_kafka.admin import AdminClient

        if not client:
            # The failure of a request is reported by the request; librdkafka's own log would repeat it every second.
            client.append(AdminClient({**settings, "log_level": "2"}))
        partitions = [
            TopicPartition(topic, int(partition), offset)
            for topic, offsets in positions.items()
            for partition, offset in offsets.items()
        ]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        for future in client[0].alter_consumer_group_offsets(request, request_timeout=PATIENCE).values():
            for answered in future.result(timeout=PATIENCE + 1).topic_partitions:
                if answered.error is not None:
                    raise RuntimeError(f"{answered.topic}-{answered.partition}: {answered.error}")

    return send
