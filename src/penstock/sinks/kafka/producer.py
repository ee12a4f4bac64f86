"""One incarnation of a producer: a transactional id that is initialised once and never again, or none.

So outcomes stay provable: producer id and epoch change only if another client ends this producer.

Arrow columns become the C structs that librdkafka reads by numpy arithmetic on addresses, without a loop over rows. The
structs point into the Arrow buffers: the caller keeps the columns alive until librdkafka has copied them, and
`Arguments` keeps all other memory.

Null and empty values differ in Kafka (a null value deletes its key in a compacted topic): null has address 0, empty has
an address and length 0.
"""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, PenstockError, SchemaMismatch
from penstock.kafka import errors
from penstock.kafka.librdkafka import ClientError, Handle, Undelivered

#: First contact with a cluster: connect, find the coordinator, get a producer id.
INIT_SECONDS = 30.0
#: An abort asks the broker once; if that fails, the driver fences the transaction.
ABORT_SECONDS = 10.0
#: After the driver's commit the broker only confirms; it is slow only while it writes markers.
RESYNC_SECONDS = 10.0
_SLICE = 0.25

U8 = npt.NDArray[np.uint64]

#: `rd_kafka_message_t` on a 64-bit machine.
MESSAGE = np.dtype([
    ("err", "i4"), ("_pad0", "i4"), ("rkt", "u8"), ("partition", "i4"), ("_pad1", "i4"), ("payload", "u8"),
    ("len", "u8"), ("key", "u8"), ("key_len", "u8"), ("offset", "i8"), ("private", "u8"),
])  # fmt: skip
#: `rd_kafka_vu_t`: a tag and a union of 64 bytes, of which the first three words are ever used.
ARGUMENT = np.dtype([("vtype", "i4"), ("_pad", "i4"), ("a", "u8"), ("b", "u8"), ("c", "u8"), ("_rest", "V40")])
_RKT, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADER = 2, 3, 4, 5, 7, 8, 9
_COPY = 0x2
_FIXED = 6  # arguments of a row without headers

# The address of empty values where Arrow has no buffer.
_NOTHING = c.create_string_buffer(8)
_NOWHERE = np.uint64(c.addressof(_NOTHING))


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The same values in a layout that `spans` reads: itself if possible, else a copy."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_dictionary(kind) or isinstance(array, pa.RunEndEncodedArray):
        return plain(array.dictionary_decode() if pa.types.is_dictionary(kind) else array.cast(kind.value_type))
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.large_string()) if pa.types.is_string_view(kind) else array


def spans(array: pa.Array) -> tuple[U8, U8]:
    """Addresses and lengths of a `plain` binary or string array's values; it may be sliced, large or have nulls."""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    width: Any = np.int64 if wide else np.int32
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array), "u8"), np.zeros(len(array), "u8")
    ends = np.frombuffer(offsets, width, len(array) + 1, array.offset * np.dtype(width).itemsize)
    lengths = np.diff(ends).astype("u8")
    base = np.uint64(data.address) if data is not None and data.address else _NOWHERE
    addresses = base + ends[:-1].astype("u8") if base != _NOWHERE else np.full(len(array), _NOWHERE)
    if array.null_count:
        known = array.is_valid().to_numpy(zero_copy_only=False)
        addresses = np.where(known, addresses, np.uint64(0))
        lengths = np.where(known, lengths, np.uint64(0))
    return addresses, lengths


def messages(value: pa.Array, key: pa.Array | None, partition: pa.Array | None) -> npt.NDArray[np.void]:
    structs = np.zeros(len(value), MESSAGE)
    structs["payload"], structs["len"] = spans(value)
    if key is not None:
        structs["key"], structs["key_len"] = spans(key)
    structs["partition"] = -1  # the partitioner chooses, also for null
    if partition is not None:
        structs["partition"] = partition.fill_null(-1).to_numpy(zero_copy_only=False)
    return structs


@dataclass(frozen=True, slots=True)
class Arguments:
    """Rows as `rd_kafka_vu_t` arrays, for headers and timestamps; `kept` keeps the memory of the headers alive."""

    memory: npt.NDArray[np.void]
    starts: list[int]
    counts: list[int]
    kept: tuple[Any, ...]


def arguments(
    rows: npt.NDArray[np.void], topics: U8, timestamp: pa.Array | None, headers: pa.Array | None
) -> Arguments:
    """One argument array per row; `topics` holds each row's topic handle."""
    count = len(rows)
    extra = np.zeros(count, "i8")
    if headers is not None:
        extra = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype("i8")
    sizes = extra + _FIXED
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])) if count else np.zeros(0, "i8")
    vectors = np.zeros(int(sizes.sum()), ARGUMENT)
    for place, (tag, a, b) in enumerate(
        (
            (_RKT, topics, 0),
            (_PARTITION, rows["partition"].astype("u4").astype("u8"), 0),
            (_VALUE, rows["payload"], rows["len"]),
            (_KEY, rows["key"], rows["key_len"]),
            (_FLAGS, _COPY, 0),
            (_TIMESTAMP, _milliseconds(timestamp, count), 0),
        )
    ):
        vectors["vtype"][first + place] = tag
        vectors["a"][first + place] = a
        vectors["b"][first + place] = b
    kept: tuple[Any, ...] = ()
    if headers is not None and extra.any():
        at = np.ones(len(vectors), bool)
        for place in range(_FIXED):
            at[first + place] = False
        # Both flattenings copy if necessary (hidden values behind a null, a view), and cut slices to size.
        keys, values = (plain(part) for part in headers.flatten().flatten())
        names, addresses = _names(keys)
        kept = (names, values)
        vectors["vtype"][at] = _HEADER
        vectors["a"][at] = addresses
        vectors["b"][at], vectors["c"][at] = spans(values)
    base, step = vectors.ctypes.data, ARGUMENT.itemsize
    return Arguments(vectors, (base + first * step).tolist(), sizes.tolist(), kept)


def _milliseconds(timestamp: pa.Array | None, count: int) -> U8:
    # librdkafka takes 0 for the present time, so it cannot send this one moment.
    if timestamp is None:
        return np.zeros(count, "u8")
    cast = pc.cast(timestamp, pa.timestamp("ms", timestamp.type.tz), safe=False)
    numbers: U8 = pc.fill_null(cast.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype("i8").view("u8")
    wrong = int(np.count_nonzero(numbers == 0)) - timestamp.null_count
    if wrong:
        raise DataError(
            f"{wrong:,} rows have a timestamp within a millisecond of 1970-01-01T00:00:00Z, which Kafka's client treats"
            " as missing: they would get the present time, a different one in every replay.",
            to_do="write null where a row has no time of its own, or leave the column 'timestamp' out.",
        )
    return numbers


def _names(keys: pa.Array) -> tuple[tuple[Any, ...], U8]:
    """Header names as C strings (Arrow's are not zero-terminated), one copy per distinct name."""
    if keys.null_count:
        raise SchemaMismatch(
            f"{keys.null_count} headers have no key.",
            safe="nothing of this epoch is visible.",
            to_do="give every header a key; only its value may be null.",
        )
    encoded = keys.dictionary_encode()
    texts = [str(name).encode() for name in encoded.dictionary.to_pylist()]
    if any(b"\0" in text for text in texts):
        raise SchemaMismatch(
            "A header key contains a zero byte, which the Kafka client cannot write.",
            safe="nothing of this epoch is visible.",
            to_do="remove zero bytes from header keys.",
        )
    buffers = tuple(c.create_string_buffer(text) for text in texts)
    table = np.array([c.addressof(buffer) for buffer in buffers], "u8")
    return buffers, table[encoded.indices.to_numpy(zero_copy_only=False)]


class Producer:
    """Begin, send, flush, then commit or abort, repeatedly. Without a transactional id rows are visible at once."""

    def __init__(self, settings: Mapping[str, str], transactional_id: str | None) -> None:
        self.transactional_id = transactional_id or ""
        self.sequence = 0  # counts transactions; names one of them together with the id
        self.after = -1  # when the last one began, as the driver knows
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
        """Queue rows; `columns` are among `sink.ACCEPTED`. Waits while the queue is full."""
        columns = {name: plain(column) for name, column in columns.items()}  # kept until librdkafka has all rows
        rows = messages(columns["value"], columns.get("key"), columns.get("partition"))
        if not len(rows):
            return
        if "headers" in columns or "timestamp" in columns:
            self._send_each(rows, columns, topic)
        else:
            for name, where in _rows_by_topic(columns, topic):
                self._send_batch(name, rows[where])
        self.rows += len(rows)
        self._handle.poll(0)
        self._raise_failed()

    def flush(self) -> None:
        """Return once every row of the transaction is at the broker, or raise why one is not."""
        started = time.monotonic()
        # Successful deliveries raise no event, so librdkafka's flush sleeps its whole slice: begin with short ones.
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
        """Catch up with the driver's commit; whether this producer is usable again."""
        return self._ended(self._handle.commit, RESYNC_SECONDS)

    def abort(self) -> bool:
        """End the transaction with nothing visible; whether this producer is usable again."""
        return self._ended(self._handle.abort, ABORT_SECONDS)

    def destroy(self) -> None:
        self._handle.destroy()

    def abandon(self) -> None:
        self._handle.abandon()

    def _ended(self, end: Callable[[float], ClientError | None], seconds: float) -> bool:
        """Whether the transaction ended and no request is in flight that could end this producer's next one."""
        return end(seconds) is None and self._handle.sure

    def _init(self) -> None:
        started = time.monotonic()
        # Without a broker that it knows, librdkafka looks for the coordinator again only after half a second.
        self._handle.reach(_SLICE)
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
            # A full queue refuses all further rows, so the remainder is contiguous; any other error is final.
            bad = np.flatnonzero((offered["err"] != 0) & (offered["err"] != errors.QUEUE_FULL))
            if len(bad):
                row = offered[bad[0]]
                self._refused(int(row["err"]), topic, int(row["len"] + row["key_len"]))
            self._wait_for_room()

    def _send_each(self, rows: npt.NDArray[np.void], columns: Mapping[str, pa.Array], topic: str | None) -> None:
        handles = np.zeros(len(rows), "u8")
        for name, where in _rows_by_topic(columns, topic):
            handles[where] = self._topic(name, rows["partition"][where])
        vectors = arguments(rows, handles, columns.get("timestamp"), columns.get("headers"))
        done = 0
        while done < len(rows):
            more, code = self._handle.produce_each(vectors.starts[done:], vectors.counts[done:])
            done += more
            if code == errors.QUEUE_FULL:
                self._wait_for_room()
            elif code:
                row = rows[done]
                self._refused(code, topic or str(columns["topic"][done]), int(row["len"] + row["key_len"]))

    def _wait_for_room(self) -> None:
        # Delivered rows raise no event, so a long poll would oversleep.
        self._handle.poll(0.002)
        self._raise_failed()

    def _topic(self, name: str, numbers: npt.NDArray[np.int32]) -> int:
        """The topic's handle, once its partitions are known: librdkafka must not meet an explicit partition before."""
        low, high = int(numbers.min()), int(numbers.max())
        # Partitions may have been added: look an unknown number up before refusing it.
        if name not in self._partitions or high >= self._partitions[name]:
            code, count = self._handle.partitions(name, INIT_SECONDS)
            if code or not count:
                code = code or errors.UNKNOWN_TOPIC_OR_PARTITION
                context = {"servers": self._servers, "doing": f"looking up topic {name!r}", "topic": name}
                raise errors.from_code(code, self._handle.text(code), **context, seconds=INIT_SECONDS)
            self._partitions[name] = count
        if low < -1 or high >= self._partitions[name]:
            raise DataError(
                f"A row names partition {low if low < -1 else high} of topic {name!r}, which does not exist.",
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
        if len(self._failed) < 100:
            self._failed.append(row)

    def _troubled(self, code: int, reason: str) -> None:
        # "All brokers down" follows the reason why; keep the reason.
        if code != errors.ALL_BROKERS_DOWN or self._trouble is None:
            self._trouble = (code, reason)


def _rows_by_topic(
    columns: Mapping[str, pa.Array], topic: str | None
) -> list[tuple[str, slice | npt.NDArray[np.bool_]]]:
    """Topic names with the places of their rows; the sink's own topic wins over the column, as in Spark."""
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
