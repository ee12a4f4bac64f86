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

from penstock.deadline import Deadline
from penstock.kafka import settings
from penstock.kafka.connections import Connections

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


def admin_sender(servers: str, options: Mapping[str, str]) -> Send:
    """Sends through one kept connection, opened with the first positions and again after a failure. `options` are
    connection settings in librdkafka's names.

    Through kafka-python, not librdkafka: the latter's request for group offsets ends the whole process by an assertion
    when the group's coordinator goes away at the wrong moment, and this is the driver.
    """
    connections: list[Connections] = []

    def send(group: str, positions: Positions) -> None:
        if not connections:
            connections.append(Connections(servers, settings.normalise(options)))
        connection = connections.pop()
        from kafka.structs import OffsetAndMetadata, TopicPartition

        offsets = {
            TopicPartition(topic, int(partition)): OffsetAndMetadata(offset, "", -1)
            for topic, own in positions.items()
            for partition, offset in own.items()
        }
        try:
            answers = connection.ask(lambda admin: admin.alter_group_offsets(group, offsets), Deadline(PATIENCE))
        except BaseException:
            connection.close()
            raise
        connections.append(connection)
        refused = {where: error for where, error in answers.items() if getattr(error, "errno", 0) != 0}
        if refused:
            raise RuntimeError(f"the group's coordinator refused {refused}")

    return send
