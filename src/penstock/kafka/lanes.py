"""Pipelined requests to a cluster over several connections, on kafka-python's admin client.

A broker answers the requests of one connection one after the other, so a thousand commits go out over `LANES` of them.
A lane connects when it is first used and again, from the bootstrap servers, after it has failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import SystemUnavailable
from penstock.kafka import faults, settings
from penstock.kafka.wire import wire
from penstock.secrets import is_secret

if TYPE_CHECKING:
    from penstock.deadline import Deadline

LANES = 4
#: A broker that has not answered by then is asked again over a new connection.
REQUEST_SECONDS = 15.0
CONNECT_SECONDS = 5.0
_REFUSAL_SECONDS = 2.0
_IN_FLIGHT = 250

_T = TypeVar("_T")


class NotSent(Exception):
    """The request did not leave this process."""


class Lanes:
    """Connections to one cluster. Safe to use from several threads."""

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        wire()  # missing is better said here than from a thread
        self.servers = servers
        self._options = dict(options)
        self._config = {
            name: _Secret(value) if is_secret(name) and isinstance(value, str) else value
            for name, value in settings.for_admin(servers, options).items()
        }
        self._admins: list[Any] = [None] * LANES
        self._locks = [threading.Lock() for _ in range(LANES)]
        self._threads = ThreadPoolExecutor(LANES, thread_name_prefix="penstock-kafka")
        self._closed = False

    def send(self, requests: Sequence[tuple[int | None, Any]], deadline: Deadline) -> list[Any]:
        """Responses to (node, request) pairs, in order; no node means any. What failed is an exception in its place:
        `NotSent` where the request surely never left, anything else where it may still arrive. `AccessDenied` is
        raised."""
        if not requests:
            return []
        lanes = min(LANES, len(requests))
        seconds = min(deadline.remaining(), REQUEST_SECONDS)
        if lanes == 1:
            jobs = [self._threads.submit(self._send, 0, requests, seconds)]
        else:
            jobs = [self._threads.submit(self._send, lane, requests[lane::lanes], seconds) for lane in range(lanes)]
        answers: list[Any] = [None] * len(requests)
        end = time.monotonic() + seconds + 1
        for lane, job in enumerate(jobs):
            count = len(requests[lane::lanes])
            try:
                answers[lane::lanes] = job.result(max(0.0, end - time.monotonic()))
            except Late as late:
                # Not even kafka-python's own timers freed it: leave that connection to itself.
                self._replace(lane)
                answers[lane::lanes] = [NotSent()] * count if job.cancel() else [late] * count
        return answers

    def ask(self, question: Callable[[Any], _T], deadline: Deadline) -> _T:
        """`question` with a connected kafka-python admin client."""
        with self._locks[0]:
            admin = self._admin(0, deadline.remaining())
        return question(admin)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        admins, self._admins = self._admins, [None] * LANES
        for admin in admins:
            if admin is not None:
                _close(admin)

    def _send(self, lane: int, requests: Sequence[tuple[int | None, Any]], seconds: float) -> list[Any]:
        answers: list[Any] = []
        end = time.monotonic() + seconds
        with self._locks[lane]:
            for start in range(0, len(requests), _IN_FLIGHT):
                part = requests[start : start + _IN_FLIGHT]
                left = end - time.monotonic()
                try:
                    if left <= 0:
                        raise NotSent
                    admin = self._admin(lane, left)
                except (SystemUnavailable, NotSent) as error:
                    answers.extend(NotSent(error) for _ in part)
                    continue
                got = self._exchange(admin, part, left)
                answers.extend(got)
                if all(isinstance(answer, Exception) for answer in got):
                    self._replace(lane)
        return answers

    def _exchange(self, admin: Any, requests: Sequence[tuple[int | None, Any]], seconds: float) -> list[Any]:
        errors = wire().errors

        async def all_at_once() -> list[Any]:
            futures: list[Any] = []
            for node, request in requests:
                try:
                    future = admin._manager.send(request, node_id=node, request_timeout_ms=max(1, int(seconds * 1000)))
                except errors.KafkaError as error:
                    future = NotSent(error)
                futures.append(future)
            answers: list[Any] = []
            for future in futures:
                try:
                    answers.append(future if isinstance(future, NotSent) else await future)
                except errors.NodeNotReadyError as error:
                    answers.append(NotSent(error))
                except errors.KafkaError as error:
                    answers.append(error)
            return answers

        try:
            return list(admin._manager.run(all_at_once))
        except (errors.KafkaError, RuntimeError) as error:  # the client was closed under our feet
            return [error] * len(requests)

    def _admin(self, lane: int, seconds: float) -> Any:
        admin = self._admins[lane]
        if admin is None:
            if self._closed:
                raise NotSent
            try:
                admin = self._admins[lane] = _connect(self.servers, self._config, min(seconds, CONNECT_SECONDS))
            except SystemUnavailable:
                self._raise_refusal()
                raise
        return admin

    def _raise_refusal(self) -> None:
        """`AccessDenied` if that is why nobody answers: kafka-python only says that it could not connect in time."""
        if "security.protocol" in self._options:
            from penstock.kafka.reach import reach

            reach(self.servers, settings.for_producer(self.servers, self._options, 60), None, _REFUSAL_SECONDS)

    def _replace(self, lane: int) -> None:
        admin, self._admins[lane] = self._admins[lane], None
        if admin is not None:
            threading.Thread(target=_close, args=(admin,), daemon=True).start()


class _Secret(str):
    """A password that the client library cannot write into its log."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _connect(servers: str, config: Mapping[str, Any], seconds: float) -> Any:
    """A connected admin client; `AccessDenied` if the brokers refuse it, `SystemUnavailable` if they are silent."""
    errors = wire().errors
    admin = wire().Admin.__new__(wire().Admin)
    try:
        admin.__init__(
            **config,
            bootstrap_timeout_ms=max(100, int(seconds * 1000)),
            request_timeout_ms=int(REQUEST_SECONDS * 1000),
            reconnect_backoff_max_ms=1000,
            max_in_flight_requests_per_connection=4 * _IN_FLIGHT,
        )
    except (errors.SaslAuthenticationFailedError, errors.AuthorizationError) as error:
        _close(admin)
        raise faults.denied("the connection", type(error).__name__) from None
    except errors.KafkaError as error:
        _close(admin)
        raise faults.unreachable(servers, type(error).__name__, seconds) from None
    return admin


def _close(admin: Any) -> None:
    # A client whose bootstrap failed has a running thread but not yet this flag.
    admin._closed = False
    try:
        admin.close()
    except (OSError, RuntimeError):  # its loop has ended by itself
        pass
