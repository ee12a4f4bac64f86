"""A thin ctypes binding to the librdkafka that confluent-kafka brings.

`rd_kafka_produce_batch` takes the addresses of rows, where a Python call per row would cost three times as much.
`Handle` owns one `rd_kafka_t`; it is not thread-safe beyond what librdkafka is, and knows nothing of epochs.

Callbacks run only inside `poll`, `flush`, `commit` and `abort`, in the calling thread, never from librdkafka's own
threads: an interpreter that is shutting down, or a forked child, is then never called into. The one exception is
`watcher`, which counts requests that left for the broker.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import functools
import glob
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigurationError, MissingExtra, PenstockError
from penstock.kafka.tokens import Token, keep_fresh, split, tokens_of
from penstock.secrets import MASK

_END_TXN = 26  # of Kafka's protocol
_MSG_F_COPY, _MSG_F_PARTITION, _PARTITION_UA = 0x2, 0x8, -1
_PRODUCER, _CONF_OK = 0, 0
_PURGE_QUEUE, _PURGE_INFLIGHT = 0x1, 0x2

_P, _I, _S = c.c_void_p, c.c_int, c.c_char_p
_ON_NEW = c.CFUNCTYPE(_I, _P, _P, _P, _P, c.c_size_t)
_REQUEST = (_P, _I, _P, c.c_int32, c.c_int16, c.c_int16, c.c_int32, c.c_size_t)
_ON_REQUEST = c.CFUNCTYPE(_I, *_REQUEST, _P)
_ON_ANSWER = c.CFUNCTYPE(_I, *_REQUEST, c.c_int64, _I, _P)


class Endings:
    """Whether every EndTxn request of each living producer, by its address, was answered: librdkafka repeats them
    silently.

    A producer has one such request in flight at a time: it sends the next, or the same again, once the last is answered
    or given up. Nothing else can be relied on: librdkafka reports an answer twice and without the request's number.
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


ENDINGS = Endings()


@functools.cache
def watcher(lib: Any) -> Any:
    """The interceptor that reports a new producer's requests to `ENDINGS`; one per process.

    librdkafka's threads call it right after a request's last byte and before they parse an answer, so the count is true
    when a call that waits for the answer returns. It is never freed: a thread may call it until the process ends.
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

    on_request, on_answer = _ON_REQUEST(sent), _ON_ANSWER(answered)

    def created(rk: int, _conf: Any, _opaque: Any, _text: Any, _size: Any) -> int:
        endings.begin(rk)
        return int(
            lib.rd_kafka_interceptor_add_on_request_sent(rk, b"penstock", on_request, None)
            or lib.rd_kafka_interceptor_add_on_response_received(rk, b"penstock", on_answer, None)
        )

    on_new = _ON_NEW(created)
    for callback in (on_request, on_answer, on_new):
        c.pythonapi.Py_IncRef(c.py_object(callback))
    return on_new


@dataclass(frozen=True, slots=True)
class ClientError:
    code: int
    text: str
    retriable: bool = False


@dataclass(frozen=True, slots=True)
class Undelivered:
    """One row that the broker, or librdkafka, refused."""

    code: int
    text: str
    topic: str
    size: int


class Message(c.Structure):
    """`rd_kafka_message_t`; `producer.MESSAGE` is the same layout for numpy."""

    _fields_ = (
        ("err", c.c_int), ("rkt", c.c_void_p), ("partition", c.c_int32), ("payload", c.c_void_p), ("len", c.c_size_t),
        ("key", c.c_void_p), ("key_len", c.c_size_t), ("offset", c.c_int64), ("private", c.c_void_p),
    )  # fmt: skip


class _MetadataTopic(c.Structure):
    _fields_ = (("topic", c.c_char_p), ("partition_cnt", c.c_int), ("partitions", c.c_void_p), ("err", c.c_int))


class _Metadata(c.Structure):
    _fields_ = (
        ("broker_cnt", c.c_int), ("brokers", c.c_void_p), ("topic_cnt", c.c_int),
        ("topics", c.POINTER(_MetadataTopic)), ("orig_broker_id", c.c_int32), ("orig_broker_name", c.c_char_p),
    )  # fmt: skip


_DR_MSG_CB = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Message), c.c_void_p)
_ERROR_CB = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_void_p)
_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "err2str": (_S, (_I,)),
    "conf_new": (_P, ()),
    "conf_destroy": (None, (_P,)),
    "conf_set": (_I, (_P, _S, _S, _P, c.c_size_t)),
    "conf_set_dr_msg_cb": (None, (_P, _DR_MSG_CB)),
    "conf_set_error_cb": (None, (_P, _ERROR_CB)),
    "conf_set_log_cb": (None, (_P, _P)),
    "conf_interceptor_add_on_new": (_I, (_P, _S, _ON_NEW, _P)),
    "interceptor_add_on_request_sent": (_I, (_P, _S, _ON_REQUEST, _P)),
    "interceptor_add_on_response_received": (_I, (_P, _S, _ON_ANSWER, _P)),
    "new": (_P, (_I, _P, _P, c.c_size_t)),
    "destroy": (None, (_P,)),
    "poll": (_I, (_P, _I)),
    "flush": (_I, (_P, _I)),
    "purge": (_I, (_P, _I)),
    "fatal_error": (_I, (_P, _P, c.c_size_t)),
    "topic_new": (_P, (_P, _S, _P)),
    "topic_destroy": (None, (_P,)),
    "topic_name": (_S, (_P,)),
    "metadata": (_I, (_P, _I, _P, c.POINTER(c.POINTER(_Metadata)), _I)),
    "metadata_destroy": (None, (c.POINTER(_Metadata),)),
    "produce_batch": (_I, (_P, c.c_int32, _I, _P, _I)),
    "produceva": (_P, (_P, _P, c.c_size_t)),
    "init_transactions": (_P, (_P, _I)),
    "begin_transaction": (_P, (_P,)),
    "commit_transaction": (_P, (_P, _I)),
    "abort_transaction": (_P, (_P, _I)),
    "error_code": (_I, (_P,)),
    "error_string": (_S, (_P,)),
    "error_is_retriable": (_I, (_P,)),
    "error_destroy": (None, (_P,)),
    "oauthbearer_set_token": (_I, (_P, _S, c.c_int64, _S, c.POINTER(_S), c.c_size_t, _P, c.c_size_t)),
}


@functools.cache
def library() -> Any:
    """librdkafka with its functions typed, once per process; `MissingExtra` where confluent-kafka is not installed."""
    with MissingExtra.named("Kafka (confluent-kafka)", "kafka"):
        import confluent_kafka
        from confluent_kafka import cimpl
    wheel = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
    # The extension's own handle resolves the very library it loaded; a copy by path would be a second one.
    for path in (cimpl.__file__, *sorted(glob.glob(f"{wheel}/confluent_kafka.libs/librdkafka*"))):
        loaded = c.CDLL(path)
        try:
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(loaded, f"rd_kafka_{name}")
                function.restype, function.argtypes = result, list(arguments)
        except AttributeError:
            continue
        return loaded
    raise MissingExtra(
        f"No usable librdkafka was found beside confluent-kafka {confluent_kafka.__version__}.",
        to_do="pip install --force-reinstall 'penstock[kafka]'; a static build of confluent-kafka hides the functions.",
    )


class Handle:
    """One `rd_kafka_t` producer.

    The methods below call `undelivered` for every row that was not delivered and `trouble` for every connection error;
    neither may raise.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        undelivered: Callable[[Undelivered], None],
        trouble: Callable[[int, str], None],
    ) -> None:
        self._lib = lib = library()
        self._topics: dict[str, int] = {}
        self._rk: int | None = None
        self._tokens, self._token = tokens_of(settings), Token("", 0.0, "")
        self._renewing = threading.Lock()  # held while a token is set: by another thread than that of all other calls
        if self._tokens is not None:
            self._tokens.get()  # raises where none can be had
            _, settings = split(settings)

        def delivered(_rk: Any, message: Any, _opaque: Any) -> None:
            m = message[0]
            if m.err:
                name = lib.rd_kafka_topic_name(m.rkt).decode() if m.rkt else "?"
                undelivered(Undelivered(m.err, self.text(m.err), name, m.len + m.key_len))

        def troubled(_rk: Any, code: int, reason: bytes | None, _opaque: Any) -> None:
            trouble(code, (reason or b"").decode(errors="replace"))

        # librdkafka keeps bare pointers to these: they live as long as this object, which outlives destroy().
        self._delivered, self._troubled = _DR_MSG_CB(delivered), _ERROR_CB(troubled)
        conf = lib.rd_kafka_conf_new()
        buffer = c.create_string_buffer(512)
        for name, value in settings.items():
            if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), buffer, len(buffer)) != _CONF_OK:
                lib.rd_kafka_conf_destroy(conf)
                text = buffer.value.decode()  # quotes the refused value, which may be a secret
                raise ConfigurationError(
                    f"The Kafka client refuses the setting {name}: {text.replace(value, MASK) if value else text}.",
                    safe="nothing was written.",
                    to_do="correct it in the sink's options; librdkafka's CONFIGURATION.md lists names and ranges.",
                )
        lib.rd_kafka_conf_set_dr_msg_cb(conf, self._delivered)
        lib.rd_kafka_conf_set_error_cb(conf, self._troubled)
        lib.rd_kafka_conf_interceptor_add_on_new(conf, b"penstock", watcher(lib), None)
        if "debug" not in settings:
            # Errors arrive by callback; librdkafka's log would repeat them on every worker's stderr.
            lib.rd_kafka_conf_set_log_cb(conf, None)
        self._rk = lib.rd_kafka_new(_PRODUCER, conf, buffer, len(buffer))
        if not self._rk:
            lib.rd_kafka_conf_destroy(conf)
            raise ConfigurationError(
                f"The Kafka client cannot be created: {buffer.value.decode()}.",
                safe="nothing was written.",
                to_do="correct the sink's options.",
            )
        if self._tokens is not None:
            self.renew()
            keep_fresh(self)

    def renew(self) -> None:
        """Hand librdkafka the current token, where there is a newer one. Safe from any thread."""
        assert self._tokens is not None
        with contextlib.suppress(PenstockError):  # without a newer one the broker refuses the old one in the end
            token, buffer = self._tokens.get(), c.create_string_buffer(512)
            flat = [part.encode() for pair in self._tokens.extensions.items() for part in pair]
            plain = token.value.encode(), int(token.expires * 1000), token.principal.encode()
            with self._renewing:
                if self._rk is not None and token != self._token:
                    extensions = (c.c_char_p * len(flat))(*flat), len(flat)
                    self._lib.rd_kafka_oauthbearer_set_token(self._rk, *plain, *extensions, buffer, len(buffer))
                    self._token = token

    def text(self, code: int) -> str:
        return str(self._lib.rd_kafka_err2str(code).decode())

    def topic(self, name: str) -> int:
        """The handle of topic `name`, kept until destroy()."""
        if name not in self._topics:
            self._topics[name] = self._lib.rd_kafka_topic_new(self._rk, name.encode(), None)
        return self._topics[name]

    def partitions(self, name: str, seconds: float) -> tuple[int, int]:
        """(error code, number of partitions) of topic `name`, asked from the broker."""
        metadata = c.POINTER(_Metadata)()
        code = self._lib.rd_kafka_metadata(self._rk, 0, self.topic(name), c.byref(metadata), _ms(seconds))
        if code:
            return code, 0
        try:
            topic = metadata.contents.topics[0]
            return topic.err, topic.partition_cnt
        finally:
            self._lib.rd_kafka_metadata_destroy(metadata)

    def reach(self, seconds: float) -> int:
        """0 once a broker has answered, else an error code."""
        metadata = c.POINTER(_Metadata)()
        code = int(self._lib.rd_kafka_metadata(self._rk, 0, None, c.byref(metadata), _ms(seconds)))
        if code == 0:
            self._lib.rd_kafka_metadata_destroy(metadata)
        return code

    def produce_batch(self, topic: int, address: int, count: int) -> int:
        """Offer `count` message structs; how many were accepted. The others carry their error. Payloads are copied."""
        flags = _MSG_F_COPY | _MSG_F_PARTITION
        return int(self._lib.rd_kafka_produce_batch(topic, _PARTITION_UA, flags, address, count))

    def produce_each(self, starts: list[int], counts: list[int]) -> tuple[int, int]:
        """Offer rows as `rd_kafka_vu_t` arrays; (number accepted, code of the first refused one or 0)."""
        call, rk = self._lib.rd_kafka_produceva, self._rk
        for done, (start, count) in enumerate(zip(starts, counts, strict=True)):
            error = call(rk, start, count)
            if error:
                return done, self._error(error).code
        return len(starts), 0

    def poll(self, seconds: float) -> None:
        """Serve callbacks, waiting up to `seconds` for one."""
        self._lib.rd_kafka_poll(self._rk, _ms(seconds))

    def flush(self, seconds: float) -> bool:
        """Whether everything was delivered or reported undelivered within `seconds`."""
        return bool(self._lib.rd_kafka_flush(self._rk, _ms(seconds)) == 0)

    def fatal(self) -> ClientError | None:
        """The error that made this producer unusable, if there is one."""
        buffer = c.create_string_buffer(512)
        code = self._lib.rd_kafka_fatal_error(self._rk, buffer, len(buffer))
        return ClientError(code, buffer.value.decode(errors="replace")) if code else None

    def init_transactions(self, seconds: float) -> ClientError | None:
        return self._maybe(self._lib.rd_kafka_init_transactions(self._rk, _ms(seconds)))

    def begin(self) -> ClientError | None:
        return self._maybe(self._lib.rd_kafka_begin_transaction(self._rk))

    @property
    def sure(self) -> bool:
        """Whether every request to end a transaction that ever left for the broker was answered."""
        return ENDINGS.sure(self._rk)

    def commit(self, seconds: float) -> ClientError | None:
        return self._maybe(self._lib.rd_kafka_commit_transaction(self._rk, _ms(seconds)))

    def abort(self, seconds: float) -> ClientError | None:
        return self._maybe(self._lib.rd_kafka_abort_transaction(self._rk, _ms(seconds)))

    def destroy(self) -> None:
        """Free all local resources; a transaction that is open at the broker stays open."""
        if self._rk is None:
            return
        with self._renewing:  # from here on no token is set
            rk, self._rk = self._rk, None
        self._lib.rd_kafka_purge(rk, _PURGE_QUEUE | _PURGE_INFLIGHT)
        for handle in self._topics.values():
            self._lib.rd_kafka_topic_destroy(handle)
        self._topics.clear()
        self._lib.rd_kafka_destroy(rk)
        ENDINGS.forget(rk)

    def abandon(self) -> None:
        """Forget the handle without touching it: in a forked child its threads do not exist."""
        self._rk = None
        self._topics.clear()

    def _maybe(self, error: int | None) -> ClientError | None:
        return self._error(error) if error else None

    def _error(self, error: int) -> ClientError:
        lib = self._lib
        try:
            text = lib.rd_kafka_error_string(error).decode(errors="replace")
            return ClientError(lib.rd_kafka_error_code(error), text, bool(lib.rd_kafka_error_is_retriable(error)))
        finally:
            lib.rd_kafka_error_destroy(error)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
