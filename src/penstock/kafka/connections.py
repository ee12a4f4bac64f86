"""The driver's connections to a cluster; a task uses `librdkafka`.

`Connections` sends many requests at once through kafka-python's admin client: it ends transactions, describes and
creates topics, sets groups' positions. `reach` and `librdkafka_admin` connect through librdkafka, which reports why a
broker refuses where kafka-python is silent. `fetch` and `batches` read a topic's log as its leaders keep it, without
isolation: every batch names its producer, and the end of a transaction is a batch of its own, a marker.
`GroupPublisher` mirrors positions of committed epochs to a consumer group, where lag tools see them. They are never the
truth, so publishing is best effort, beside the epoch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import struct
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.deadline import Deadline
from penstock.errors import MissingExtra, SystemUnavailable
from penstock.kafka import errors, settings
from penstock.kafka.librdkafka import Handle
from penstock.kafka.settings import normalise
from penstock.kafka.tokens import for_confluent
from penstock.secrets import is_secret

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

log = logging.getLogger("penstock")

#: A broker answers the requests of one connection in order, so a thousand commits are spread over several.
_CONNECTIONS = 4
#: A request without an answer by then is sent again over a new connection.
REQUEST_SECONDS = 15.0
CONNECT_SECONDS = 5.0
#: A broker that has restarted may not know all of its topics for so long.
JOINING_SECONDS = 10.0
_IN_FLIGHT = 250

_T = TypeVar("_T")
_Topics = TypeVar("_Topics", bound=Mapping[str, Any])
_HEADER = struct.Struct(">qiibIhiqqqhii")
_FETCH_BYTES = 8 << 20
_EARLIEST = -2
_CONTROL, _COMMIT = 0x20, 1

PAUSE = 1.0  # seconds between two updates: lag tools look every few seconds, and an epoch must not cost a request
PATIENCE = 10.0  # seconds a request may take: long enough for a group's coordinator to move; no epoch waits for it
PATIENT_TRIES = 3  # failures in a row before a warning: a coordinator may move, or be new and still loading

Positions = Mapping[str, Mapping[str, int]]
Send = Callable[[str, Positions], None]


@functools.cache
def kafka_python() -> SimpleNamespace:
    """Admin client, errors and requests; `MissingExtra` where kafka-python is not installed."""
    with MissingExtra.named("Kafka (kafka-python)", "kafka"), warnings.catch_warnings():
        # It reads its message schemas through a deprecated function of the standard library.
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaAdminClient
        from kafka import errors as kafka_errors
        from kafka.admin import ConfigResource
        from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
        from kafka.protocol.consumer import FetchRequest
        from kafka.protocol.metadata import FindCoordinatorRequest
        from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
    for name in ("kafka.net", "kafka.protocol"):  # at DEBUG they log every request, logins with their secrets too
        logging.getLogger(name).setLevel(logging.INFO)
    return SimpleNamespace(
        Admin=KafkaAdminClient, ConfigResource=ConfigResource, errors=kafka_errors,
        DescribeTransactions=DescribeTransactionsRequest, ListTransactions=ListTransactionsRequest,
        FindCoordinator=FindCoordinatorRequest, EndTxn=EndTxnRequest, InitProducerId=InitProducerIdRequest,
        Fetch=FetchRequest,
    )  # fmt: skip


class NotSent(Exception):
    """The request did not leave this process."""


class Connections:
    """Connections to one cluster, each opened when it is first used and again after a failure. Thread-safe."""

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        kafka_python()  # if it is missing, raise here and not in a thread
        self.servers = servers
        self._options = dict(options)
        self._config = {
            name: _Secret(value) if is_secret(name) and isinstance(value, str) else value
            for name, value in settings.for_kafka_python(servers, options).items()
        }
        self._admins: list[Any] = [None] * _CONNECTIONS
        self._locks = [threading.Lock() for _ in range(_CONNECTIONS)]
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="penstock-kafka")
        self._closed = False

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        """Responses to (node, request) pairs, in order; no node means any. A failed request has an exception in its
        place: `NotSent` if it surely never left, any other if it may still arrive. Raises `AccessDenied`."""
        if not requests:
            return []
        used = min(_CONNECTIONS, len(requests))
        seconds = min(deadline.remaining(), REQUEST_SECONDS)
        jobs = [self._threads.submit(self._send, number, requests[number::used], seconds) for number in range(used)]
        answers: list[Any] = [None] * len(requests)
        end = time.monotonic() + seconds + 1
        for number, job in enumerate(jobs):
            count = len(requests[number::used])
            try:
                answers[number::used] = job.result(max(0.0, end - time.monotonic()))
            except Late as late:
                # Not even kafka-python's own timers freed it: drop that connection.
                self._replace(number)
                answers[number::used] = [NotSent()] * count if job.cancel() else [late] * count
        return answers

    def ask(self, question: Callable[[Any], _T], deadline: Deadline) -> _T:
        with self._locks[0]:
            admin = self._admin(0, deadline.remaining())
        return question(admin)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        admins, self._admins = self._admins, [None] * _CONNECTIONS
        for admin in admins:
            if admin is not None:
                _close(admin)

    def _send(self, number: int, requests: Sequence[tuple[int | None, Any]], seconds: float) -> list[Any]:
        answers: list[Any] = []
        end = time.monotonic() + seconds
        with self._locks[number]:
            for start in range(0, len(requests), _IN_FLIGHT):
                part = requests[start : start + _IN_FLIGHT]
                left = end - time.monotonic()
                try:
                    if left <= 0:
                        raise NotSent
                    admin = self._admin(number, left)
                except (SystemUnavailable, NotSent) as error:
                    answers.extend(NotSent(error) for _ in part)
                    continue
                replies = self._exchange(admin, part, left)
                answers.extend(replies)
                if all(isinstance(reply, Exception) for reply in replies):
                    self._replace(number)
        return answers

    def _exchange(self, admin: Any, requests: Sequence[tuple[int | None, Any]], seconds: float) -> list[Any]:
        kafka_errors = kafka_python().errors

        async def all_at_once() -> list[Any]:
            futures: list[Any] = []
            for node, request in requests:
                try:
                    future = admin._manager.send(request, node_id=node, request_timeout_ms=max(1, int(seconds * 1000)))
                except kafka_errors.KafkaError as error:
                    future = NotSent(error)
                futures.append(future)
            answers: list[Any] = []
            for future in futures:
                try:
                    answers.append(future if isinstance(future, NotSent) else await future)
                except kafka_errors.NodeNotReadyError as error:
                    answers.append(NotSent(error))
                except kafka_errors.KafkaError as error:
                    answers.append(error)
            return answers

        try:
            return list(admin._manager.run(all_at_once))
        except (kafka_errors.KafkaError, RuntimeError) as error:  # the client was closed under our feet
            return [error] * len(requests)

    def _admin(self, number: int, seconds: float) -> Any:
        admin = self._admins[number]
        if admin is None:
            if self._closed:
                raise NotSent
            try:
                admin = self._admins[number] = _connect(self.servers, self._config, min(seconds, CONNECT_SECONDS))
            except SystemUnavailable:
                # kafka-python only reports that it could not connect in time; this raises `AccessDenied`, if so.
                if "security.protocol" in self._options:
                    reach(self.servers, settings.for_producer(self.servers, self._options, 60), None, 2.0)
                raise
            if self._closed:  # while this thread was connecting, so it has to close the connection
                self._replace(number)
                raise NotSent
        return admin

    def _replace(self, number: int) -> None:
        admin, self._admins[number] = self._admins[number], None
        if admin is not None:
            threading.Thread(target=_close, args=(admin,), daemon=True).start()


class _Secret(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _connect(servers: str, config: Mapping[str, Any], seconds: float) -> Any:
    """A connected admin client; `AccessDenied` if the brokers refuse, `SystemUnavailable` if they do not answer."""
    kafka_errors = kafka_python().errors
    admin = kafka_python().Admin.__new__(kafka_python().Admin)
    try:
        admin.__init__(
            **config,
            bootstrap_timeout_ms=max(100, int(seconds * 1000)),
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            reconnect_backoff_max_ms=1000,
            max_in_flight_requests_per_connection=4 * _IN_FLIGHT,
        )
    except (kafka_errors.SaslAuthenticationFailedError, kafka_errors.AuthorizationError) as error:
        _close(admin)
        raise errors.denied("the connection", type(error).__name__) from None
    except kafka_errors.KafkaError as error:
        _close(admin)
        raise errors.unreachable(servers, type(error).__name__, seconds) from None
    except BaseException:
        _close(admin)
        raise
    return admin


def _close(admin: Any) -> None:
    # A client whose bootstrap failed has a running thread but not yet this flag.
    admin._closed = False
    with contextlib.suppress(OSError, RuntimeError, AttributeError):  # its loop ended, or never began
        admin.close()
    with contextlib.suppress(OSError, RuntimeError, AttributeError):
        admin._net.stop()  # after a half-finished close its thread would go on running and logging


def reach(servers: str, settings: Mapping[str, str], topic: str | None, seconds: float = 10.0) -> bool:
    """Connect as the writers will; whether `topic` exists (True if none is named)."""
    troubles: list[tuple[int, str]] = []
    plain = {name: value for name, value in settings.items() if name != "transaction.timeout.ms"}
    handle = Handle(plain, lambda row: None, lambda code, reason: troubles.append((code, reason)))
    started = time.monotonic()
    try:
        while True:
            code, count = handle.partitions(topic, 0.5) if topic else (handle.reach(0.5), 1)
            if code == 0 and count:
                return True
            if code in (errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC):
                return False
            handle.poll(0)
            refused = [trouble for trouble in troubles if trouble[0] in (errors.AUTHENTICATION, errors.SSL)]
            waited = time.monotonic() - started
            if refused or code in errors.DENIED or waited > seconds:
                reasons = refused or [t for t in troubles if t[0] != errors.ALL_BROKERS_DOWN]
                why, text = reasons[0] if reasons and code not in errors.DENIED else (code, handle.text(code))
                raise errors.from_code(
                    why, text, servers=servers, doing="connecting", topic=topic or "", seconds=waited
                )
    finally:
        handle.destroy()


def librdkafka_admin(settings: Mapping[str, str], on_error: Callable[[Any], None] | None = None) -> AdminClient:
    """confluent-kafka's admin client; its methods call `on_error` with connection errors."""
    with MissingExtra.named("Kafka (confluent-kafka)", "kafka"):
        from confluent_kafka.admin import AdminClient
    more: dict[str, Any] = {} if on_error is None else {"error_cb": on_error}
    return AdminClient({"log_level": "2", **for_confluent(settings), **more})


def describe_topics(client: AdminClient, names: Collection[str], seconds: float) -> dict[str, Any]:
    """The description of each of these topics that is there."""
    from confluent_kafka import KafkaException, TopicCollection

    described = {}
    asked = client.describe_topics(TopicCollection(sorted(names)), request_timeout=seconds) if names else {}
    for name, future in asked.items():
        try:
            described[name] = future.result()
        except KafkaException as error:
            if error.args[0].code() != errors.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return described


def until_known(names: Collection[str], look: Callable[[], _Topics]) -> _Topics:
    """The topics that `look` finds. While one of `names` is missing, a broker that has just restarted gets some seconds
    to learn of it."""
    deadline = Deadline(JOINING_SECONDS)
    while not (topics := look()).keys() >= set(names) and not deadline.passed():
        time.sleep(0.2)
    return topics


class Batch(NamedTuple):
    first: int
    last: int
    attributes: int
    time: int  # of the newest record
    producer: tuple[int, int]  # id and epoch
    rows: int
    records: bytes

    @property
    def is_marker(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def commits(self) -> bool:
        """Of a marker: its key is a version and a kind, two bytes each, behind five small numbers."""
        return int.from_bytes(self.records[7:9], "big") == _COMMIT


class Place(NamedTuple):
    """A partition, the broker that leads it, and the first offset that is left."""

    topic: str
    number: int
    node: int
    start: int


def find_leaders(topic: str, admin: Any) -> dict[int, int]:
    """The broker that leads each of the topic's partitions; none where there is no such topic."""
    return {part["partition_index"]: part["leader_id"] for part in admin.describe_topics([topic])[0]["partitions"]}


def find_places(topic: str, admin: Any) -> list[Place]:
    from kafka import TopicPartition

    if not (leaders := find_leaders(topic, admin)):
        return []
    starts = admin.list_partition_offsets({TopicPartition(topic, number): _EARLIEST for number in leaders})
    return [Place(topic, part.partition, leaders[part.partition], start.offset) for part, start in starts.items()]


def fetch(connections: Connections, place: Place, offset: int, deadline: Deadline) -> tuple[Any, str]:
    """The leader's answer, with `records` and `high_watermark`; or None, and why."""
    kind = kafka_python().Fetch
    wanted = kind.FetchTopic.FetchPartition(
        partition=place.number, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
        log_start_offset=-1, partition_max_bytes=_FETCH_BYTES,
    )  # fmt: skip
    request = kind(
        replica_id=-1, max_wait_ms=100, min_bytes=0, max_bytes=_FETCH_BYTES, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[kind.FetchTopic(topic=place.topic, partitions=[wanted])],
        forgotten_topics_data=[], rack_id="", min_version=11,
        max_version=11,  # from 13 on topics have numbers
    )  # fmt: skip
    [answer] = connections.send([(place.node, request)], deadline)
    parts = [part for topic in getattr(answer, "responses", ()) for part in topic.partitions]
    if parts and not parts[0].error_code:
        return parts[0], ""
    return None, f"code {parts[0].error_code}" if parts else type(answer).__name__


def batches(answer: Any) -> Iterator[Batch]:
    """Every whole batch of an answer."""
    blob, at = bytes(answer.records or b""), 0
    while at + _HEADER.size <= len(blob):
        first, length, _, _, _, attributes, last, _, time, producer, epoch, _, count = _HEADER.unpack_from(blob, at)
        end = at + 12 + length
        if end <= len(blob):
            yield Batch(first, first + last, attributes, time, (producer, epoch), count, blob[at + _HEADER.size : end])
        at = end


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
