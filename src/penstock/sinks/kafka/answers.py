"""Which of librdkafka's requests to end a transaction were answered: it repeats them without a word."""

from __future__ import annotations

import ctypes as c
import functools
from typing import Any

_END_TXN = 26  # the number of that request in Kafka's protocol

_P, _I = c.c_void_p, c.c_int
ON_NEW = c.CFUNCTYPE(_I, _P, _P, _P, _P, c.c_size_t)
_REQUEST = (_P, _I, _P, c.c_int32, c.c_int16, c.c_int16, c.c_int32, c.c_size_t)
ON_REQUEST = c.CFUNCTYPE(_I, *_REQUEST, _P)
ON_ANSWER = c.CFUNCTYPE(_I, *_REQUEST, c.c_int64, _I, _P)


class Unanswered:
    """How many EndTxn requests of each living producer, by its address, have left and not been answered.

    Lists, because several threads add to one, and appending needs no lock: a forked child could inherit one that is
    held for ever."""

    def __init__(self) -> None:
        self._events: dict[int, list[int]] = {}

    def begin(self, rk: int) -> None:
        self._events[rk] = []

    def add(self, rk: int, number: int) -> None:
        events = self._events.get(rk)
        if events is not None:
            events.append(number)

    def of(self, rk: int | None) -> int:
        """Call while no request is under way."""
        events = self._events.get(rk, []) if rk is not None else []
        count = sum(events)
        if count == 0:
            events.clear()
        return count

    def forget(self, rk: int) -> None:
        self._events.pop(rk, None)


#: This process's.
UNANSWERED = Unanswered()


@functools.cache
def watcher(lib: Any) -> Any:
    """What makes a new producer count its EndTxn requests in `UNANSWERED`; one for the whole process.

    librdkafka repeats a request whose connection broke and says nothing of it, and there is no other place to learn of
    it. This is called from its threads, right after a request's last byte and before an answer is looked into, so the
    count is true when a call that waits for the answer returns. It is never freed: a thread may call it until the
    process ends.
    """
    counts, wanted = UNANSWERED, _END_TXN

    def sent(rk: int, _fd: Any, _name: Any, _node: Any, kind: int, _v: Any, _id: Any, _size: Any, _opaque: Any) -> int:
        if kind == wanted:
            counts.add(rk, 1)
        return 0

    def answered(
        rk: int, _f: Any, _name: Any, _node: Any, kind: int, _v: Any, _id: Any, _s: Any, _rtt: Any, code: int, _o: Any
    ) -> int:
        if kind == wanted and code == 0:
            counts.add(rk, -1)
        return 0

    on_request, on_answer = ON_REQUEST(sent), ON_ANSWER(answered)

    def made(rk: int, _conf: Any, _opaque: Any, _text: Any, _size: Any) -> int:
        counts.begin(rk)
        return int(
            lib.rd_kafka_interceptor_add_on_request_sent(rk, b"penstock", on_request, None)
            or lib.rd_kafka_interceptor_add_on_response_received(rk, b"penstock", on_answer, None)
        )

    on_new = ON_NEW(made)
    for each in (on_request, on_answer, on_new):
        c.pythonapi.Py_IncRef(c.py_object(each))
    return on_new
