"""One incarnation of a producer: a transactional id that is initialised once and never again, or none.

That is what keeps outcomes provable: producer id and epoch change only if somebody else ends this producer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import DataError, PenstockError, SchemaMismatch
from penstock.kafka import errors
from penstock.kafka.librdkafka import ClientError, Handle, Undelivered
from penstock.sinks.kafka.messages import MESSAGE, arguments, messages, plain

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

#: The first contact with a cluster: connect, find the coordinator, get a producer id.
INIT_SECONDS = 30.0
#: An abort asks the broker once; if that fails the driver fences the transaction instead.
ABORT_SECONDS = 10.0
#: After the driver's commit the broker only confirms; it is slow only while it still writes markers.
RESYNC_SECONDS = 10.0
_SLICE = 0.25
_MOST_KEPT = 100


class Producer:
    """Begin, send, flush, and one of commit or abort; any number of times. Used by one task at a time. Without a
    transactional id rows are visible as soon as the broker has them, and there is nothing to commit or abort."""

    def __init__(self, settings: Mapping[str, str], transactional_id: str | None) -> None:
        self.transactional_id = transactional_id or ""
        self.sequence = 0  # counts transactions; names one of them together with the id
        self.topics: set[str] = set()
        self.rows = 0
        self._servers = settings["bootstrap.servers"]
        self._limit = f"option message.max.bytes is {int(settings['message.max.bytes']):,}"
        self._delivery_seconds = int(settings["delivery.timeout.ms"]) / 1000
        self._partitions: dict[str, int] = {}
        self._failed: list[Undelivered] = []
        self._failures = 0
        self._trouble: tuple[int, str] | None = None
        named = {"transactional.id": transactional_id} if transactional_id else {}
        self._handle = Handle({**settings, **named}, self._undelivered, self._troubled)
        try:
            if transactional_id:
                self._init()
        except BaseException:
            self._handle.destroy()
            raise

    def begin(self) -> None:
        """Start a transaction; the broker learns of it with the first row."""
        self._failed.clear()
        self._failures = self.rows = 0
        self.topics = set()
        fault = self._handle.begin() if self.transactional_id else None
        if fault:
            raise self._error(fault, "beginning a transaction")
        self.sequence += 1

    def send(self, columns: Mapping[str, pa.Array], topic: str | None) -> None:
        """Queue rows; `columns` are those of `columns.ACCEPTED` that there are. Waits while the queue is full."""
        columns = {name: plain(column) for name, column in columns.items()}  # kept until all rows are handed over
        rows = messages(columns["value"], columns.get("key"), columns.get("partition"))
        if not len(rows):
            return
        if "headers" in columns or "timestamp" in columns:
            self._send_each(rows, columns, topic)
        else:
            for name, part in _by_topic(rows, columns, topic):
                self._send_batch(name, part)
        self.rows += len(rows)
        self._handle.poll(0)
        self._raise_failed()

    def flush(self) -> None:
        """Return only when every row of the transaction is at the broker; raise what kept one from it."""
        started = time.monotonic()
        # Successful deliveries raise no event, so librdkafka's flush sleeps its slice out: begin with short ones.
        wait = 0.001
        while not self._handle.flush(wait):
            self._raise_failed()
            fatal = self._handle.fatal()
            if fatal:
                raise self._error(fatal, "delivering rows")
            waited = time.monotonic() - started
            if waited > self._delivery_seconds + 5:
                code, reason = self._trouble or (errors.TIMED_OUT, "rows are still not delivered")
                raise self._error(ClientError(code, reason), "delivering rows", waited)
            wait = max(0.001, min(0.02, waited / 20))
        self._raise_failed()

    def commit(self) -> bool:
        """Catch up with a commit that the driver has done; whether this producer is usable again."""
        return self._ended(self._handle.commit, RESYNC_SECONDS)

    def abort(self) -> bool:
        """End the transaction with nothing visible; whether this producer is usable again."""
        return self._ended(self._handle.abort, ABORT_SECONDS)

    def destroy(self) -> None:
        """Free this producer; a transaction it left open stays as it is at the broker."""
        self._handle.destroy()

    def abandon(self) -> None:
        """Forget it without touching it, in a process that did not make it."""
        self._handle.abandon()

    def _ended(self, end: Callable[[float], ClientError | None], seconds: float) -> bool:
        """Whether the transaction is ended and every request for it was answered. One that was not, and was repeated,
        may still be on its way, and would end whatever this producer has open when it arrives."""
        return end(seconds) is None and self._handle.sure

    def _init(self) -> None:
        started = time.monotonic()
        while True:
            fault = self._handle.init_transactions(_SLICE)
            if fault is None:
                return
            self._handle.poll(0)
            waited = time.monotonic() - started
            refused = self._trouble and self._trouble[0] in (errors.AUTHENTICATION, errors.SSL)
            if refused or not fault.retriable or waited > INIT_SECONDS:
                if self._trouble and (refused or fault.code == errors.TIMED_OUT):
                    fault = ClientError(*self._trouble)
                raise self._error(fault, "opening a producer", waited)

    def _send_batch(self, topic: str, rows: npt.NDArray[np.void]) -> None:
        handle = self._topic(topic, rows["partition"])
        base, count, done = rows.ctypes.data, len(rows), 0
        while True:
            offered = rows[done:]
            done += self._handle.produce_batch(handle, base + done * MESSAGE.itemsize, len(offered))
            if done == count:
                return
            # A full queue refuses the whole rest, so what is left is contiguous; any other error is final.
            bad = np.flatnonzero((offered["err"] != 0) & (offered["err"] != errors.QUEUE_FULL))
            if len(bad):
                row = offered[bad[0]]
                self._refused(int(row["err"]), topic, int(row["len"] + row["key_len"]))
            self._wait_for_room()

    def _send_each(self, rows: npt.NDArray[np.void], columns: Mapping[str, pa.Array], topic: str | None) -> None:
        handles = np.zeros(len(rows), "u8")
        names = _topic_of_each(columns, topic)
        for name, where in names:
            handles[where] = self._topic(name, rows["partition"][where])
        built = arguments(rows, handles, columns.get("timestamp"), columns.get("headers"))
        done = 0
        while done < len(rows):
            more, code = self._handle.produce_each(built.starts[done:], built.counts[done:])
            done += more
            if code == errors.QUEUE_FULL:
                self._wait_for_room()
            elif code:
                row = rows[done]
                self._refused(code, topic or str(columns["topic"][done]), int(row["len"] + row["key_len"]))

    def _wait_for_room(self) -> None:
        # Delivered rows raise no event here, so a long poll would oversleep.
        self._handle.poll(0.002)
        self._raise_failed()

    def _topic(self, name: str, wanted: npt.NDArray[np.int32]) -> int:
        """The topic's handle, once its partitions are known: librdkafka must not meet an explicit partition before."""
        low, high = int(wanted.min()), int(wanted.max())
        # Partitions may have been added since: a number that is not known yet is asked for before it is refused.
        if name not in self._partitions or high >= self._partitions[name]:
            code, count = self._handle.partitions(name, INIT_SECONDS)
            if code or not count:
                text = self._handle.text(code or errors.UNKNOWN_TOPIC_OR_PARTITION)
                raise errors.from_code(
                    code or errors.UNKNOWN_TOPIC_OR_PARTITION,
                    text,
                    servers=self._servers,
                    doing=f"looking up topic {name!r}",
                    topic=name,
                    seconds=INIT_SECONDS,
                )
            self._partitions[name] = count
        if low < -1 or high >= self._partitions[name]:
            raise DataError(
                f"A row names partition {low if low < -1 else high} of topic {name!r}, which does not exist.",
                safe="nothing of this epoch is visible.",
                to_do="correct the column 'partition', or add partitions to the topic.",
            )
        self.topics.add(name)
        return self._handle.topic(name)

    def _refused(self, code: int, topic: str, size: int) -> None:
        fatal = self._handle.fatal() if code == errors.FATAL else None
        if fatal:
            raise self._error(fatal, f"writing to topic {topic!r}")
        if code == errors.MSG_SIZE_TOO_LARGE:
            raise errors.too_large(size, topic, self._limit, self._handle.text(code))
        self._raise_failed()
        raise errors.from_code(
            code, self._handle.text(code), servers=self._servers, doing=f"writing to {topic!r}", topic=topic
        )

    def _raise_failed(self) -> None:
        if self._failures:
            raise errors.from_undelivered(
                self._failed,
                total=self._failures,
                servers=self._servers,
                limit=self._limit,
                seconds=self._delivery_seconds,
            )

    def _error(self, fault: ClientError, doing: str, seconds: float = 0.0) -> PenstockError:
        return errors.from_code(fault.code, fault.text, servers=self._servers, doing=doing, seconds=seconds)

    def _undelivered(self, row: Undelivered) -> None:
        self._failures += 1
        if len(self._failed) < _MOST_KEPT:
            self._failed.append(row)

    def _troubled(self, code: int, reason: str) -> None:
        # "All brokers down" follows the reason why; keep the reason.
        if code != errors.ALL_BROKERS_DOWN or self._trouble is None:
            self._trouble = (code, reason)


def _topic_of_each(
    columns: Mapping[str, pa.Array], topic: str | None
) -> list[tuple[str, slice | npt.NDArray[np.bool_]]]:
    """Topic names with where their rows are; the sink's own topic wins over the column, as in Spark."""
    if topic is not None:
        return [(topic, slice(None))]
    column = columns.get("topic")
    if column is None or column.null_count:
        count = len(columns["value"]) if column is None else column.null_count
        raise SchemaMismatch(
            f"{count:,} rows name no topic, and neither does the sink.",
            safe="nothing of this epoch is visible.",
            to_do="give KafkaSink a topic, or fill the column 'topic' in every row.",
        )
    encoded = column.dictionary_encode()
    index = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], slice(None))]
    return [(name, index == number) for number, name in enumerate(names)]


def _by_topic(
    rows: npt.NDArray[np.void], columns: Mapping[str, pa.Array], topic: str | None
) -> list[tuple[str, npt.NDArray[np.void]]]:
    return [(name, rows[where]) for name, where in _topic_of_each(columns, topic)]
