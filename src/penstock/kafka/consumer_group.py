"""Positions of committed epochs, mirrored to a consumer group, where lag tools see them. They are never the truth, so
publishing is best effort, beside the epoch."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping

from penstock.deadline import Deadline
from penstock.kafka.connections import Connections, kafka_python
from penstock.kafka.settings import normalise

log = logging.getLogger("penstock")

PAUSE = 1.0  # seconds between two updates: lag tools look every few seconds, and an epoch must not cost a request
PATIENCE = 10.0  # seconds a request may take: long enough for a group's coordinator to move; no epoch waits for it
PATIENT_TRIES = 3  # failures in a row before a warning: a coordinator may move, or be new and still loading

Positions = Mapping[str, Mapping[str, int]]
Send = Callable[[str, Positions], None]


class GroupPublisher:
    """Sends the newest positions of one group from a thread of its own; older ones that were not sent are dropped.
    `end` is called when nothing is sent any more."""

    def __init__(self, send: Send, group: str, *, pause: float = PAUSE, end: Callable[[], None] = lambda: None) -> None:
        self._send, self._group, self._pause, self._end = send, group, pause, end
        self._newest: Positions | None = None
        self._there = threading.Condition()
        self._failures, self._closed = 0, False
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
                refused = "positions could not be published to consumer group %s, lag tools will not see this job: %s"
                log.warning(refused, self._group, error)

    def close(self) -> None:
        """Send what is waiting, unless the broker refuses anyway, and end the thread and its connection."""
        with self._there:
            self._closed = True
            self._there.notify_all()
        if self._thread is not None:
            self._thread.join(PATIENCE)
            atexit.unregister(self.flush)
        if not self._failures:
            self.flush()
        self._end()

    def _run(self) -> None:
        while not self._closed:
            with self._there:
                self._there.wait_for(lambda: self._closed or self._newest is not None)
            if not self._closed:
                self.flush()
            with self._there:
                self._there.wait_for(lambda: self._closed, self._pause)


class AdminSender:
    """Sends through one kept connection, opened with the first positions and again after a failure. `options` are
    connection settings in librdkafka's names.

    Through kafka-python, not librdkafka: the latter's request for group offsets ends the whole process by an assertion
    when the group's coordinator goes away at the wrong moment, and this is the driver.
    """

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        self._servers, self._options = servers, dict(options)
        self._connections: list[Connections] = []
        self._closed = False

    def __call__(self, group: str, positions: Positions) -> None:
        kafka_python()  # which knows how to import it
        from kafka.structs import OffsetAndMetadata, TopicPartition

        kept = self._connections
        connection = kept.pop() if kept else Connections(self._servers, normalise(self._options))
        offsets = {
            TopicPartition(topic, int(partition)): OffsetAndMetadata(offset, "", -1)
            for topic, partitions in positions.items()
            for partition, offset in partitions.items()
        }
        try:
            answers = connection.ask(lambda admin: admin.alter_group_offsets(group, offsets), Deadline(PATIENCE))
        except BaseException:
            connection.close()
            raise
        kept.append(connection)
        if self._closed:  # while this was under way
            self.close()
        refused = {where: error for where, error in answers.items() if getattr(error, "errno", 0) != 0}
        if refused:
            raise RuntimeError(f"the group's coordinator refused {refused}")

    def close(self) -> None:
        self._closed = True
        while self._connections:
            self._connections.pop().close()
