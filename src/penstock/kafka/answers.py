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


class Endings:
    """Whether every EndTxn request of each living producer, by its address, was answered.

    A producer has one such request under way at a time: it sends the next, or the same again, when the last is answered
    or given up. That is all that is relied on: of one answer librdkafka tells twice, and without the request's number.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, bool] = {}
        self._lost: set[int] = set()

    def begin(self, rk: int) -> None:
        self.forget(rk)  # in a forked child, one of the parent's may have had this address
        self._waiting[rk] = False

    def sent(self, rk: int) -> None:
        if self._waiting.get(rk):
            self._lost.add(rk)
        self._waiting[rk] = True

    def answered(self, rk: int) -> None:
        self._waiting[rk] = False

    def sure(self, rk: int | None) -> bool:
        """Call while no request is under way. Once False it stays so."""
        return rk in self._waiting and not self._waiting[rk] and rk not in self._lost

    def forget(self, rk: int) -> None:
        self._waiting.pop(rk, None)
        self._lost.discard(rk)


#: This process's.
ENDINGS = Endings()


@functools.cache
def watcher(lib: Any) -> Any:
    """What makes a new producer tell `ENDINGS` of its requests; one for the whole process.

    librdkafka repeats a request whose connection broke and says nothing of it, and there is no other place to learn of
    it. This is called from its threads, right after a request's last byte and before an answer is looked into, so what
    was counted is true when a call that waits for the answer returns. It is never freed: a thread may call it until the
    process ends.
    """
    endings, wanted = ENDINGS, _END_TXN

    def sent(rk: int, _fd: Any, _name: Any, _node: Any, kind: int, _v: Any, _id: Any, _size: Any, _opaque: Any) -> int:
        if kind == wanted:
            endings.sent(rk)
        return 0

    def answered(
        rk: int, _f: Any, _name: Any, _node: Any, kind: int, _v: Any, _id: Any, _s: Any, _rtt: Any, code: int, _o: Any
    ) -> int:
        if kind == wanted and code == 0:  # any other code is librdkafka's own: no answer came
            endings.answered(rk)
        return 0

    on_request, on_answer = ON_REQUEST(sent), ON_ANSWER(answered)

    def made(rk: int, _conf: Any, _opaque: Any, _text: Any, _size: Any) -> int:
        endings.begin(rk)
        return int(
            lib.rd_kafka_interceptor_add_on_request_sent(rk, b"penstock", on_request, None)
            or lib.rd_kafka_interceptor_add_on_response_received(rk, b"penstock", on_answer, None)
        )

    on_new = ON_NEW(made)
    for each in (on_request, on_answer, on_new):
        c.pythonapi.Py_IncRef(c.py_object(each))
    return on_new
