"""Log lines for machines: one JSON object each, with the job, query, epoch and sink that it is about.

`bound` sets those for every line that its thread logs meanwhile, including those of a sink's client library. Text lines
stay as the program has configured its logging; where it has not, `show_info` shows Penstock's own.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from penstock.errors import PenstockError
from penstock.secrets import masked

FIELDS = ("job", "query", "epoch", "sink")  # what a line may be about, in this order

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_context: ContextVar[Mapping[str, Any]] = ContextVar("penstock_log_context")
_of_process: dict[str, Any] = {}


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """While the block lasts, lines of this thread carry these `FIELDS`, too. None is left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    token = _context.set({**_context.get({}), **known})
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """One line, ASCII, whatever is logged. Secrets are masked as in events."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": masked(_message(record)),
        }
        # `extra` of the call itself wins.
        extra = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        about = {**_of_process, **_context.get({}), **extra}
        body.update({name: _plain(about.pop(name)) for name in FIELDS if about.get(name) is not None})
        body["thread"], body["process"] = record.threadName, record.process
        body.update({name: _plain(value) for name, value in about.items() if name not in body and value is not None})
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            body["exception"] = _exception(error)
        if record.stack_info:
            body["stack"] = masked(record.stack_info)
        return json.dumps(body, default=str)


class MaskedFormatter(logging.Formatter):
    """Lines as `inner` writes them, masked and fit for a terminal: a library may quote an address or a row."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(masked(self._inner.format(record)))


def show_info() -> None:
    """Write what Penstock logs, from INFO on, to stderr, unless and until the program has configured its log."""
    penstock = logging.getLogger("penstock")
    if not logging.getLogger().handlers and not penstock.handlers and penstock.level == logging.NOTSET:
        handler = logging.StreamHandler()
        handler.addFilter(lambda record: not logging.getLogger().handlers)
        handler.setFormatter(MaskedFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")))
        penstock.addHandler(handler)
        penstock.setLevel(logging.INFO)


def set_up(job: str, *, as_json: bool) -> None:
    """Configure what this process logs to its terminal; see `log_as_json` and `mask_log`."""
    if as_json:
        log_as_json(job=job)
    else:
        mask_log()


def mask_log() -> None:
    """Mask what this process logs to its terminal, from any library; files and later handlers are not changed."""
    for handler in (*logging.getLogger().handlers, logging.lastResort):
        if isinstance(handler, logging.StreamHandler) and handler.stream in _terminal():
            inner = handler.formatter or logging.Formatter()
            if not isinstance(inner, MaskedFormatter | JsonFormatter):
                handler.setFormatter(MaskedFormatter(inner))


def log_as_json(*, job: str | None = None) -> None:
    """Log to this process's terminal as JSON; calling it again changes only the job's name. Where the program has no
    handler for the terminal, one is added, and Penstock logs from INFO on. Other handlers are not changed."""
    if job is not None:
        _of_process["job"] = job
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]
    if not handlers:
        handlers = [logging.StreamHandler()]
        root.addHandler(handlers[0])
        penstock = logging.getLogger("penstock")
        if penstock.level == logging.NOTSET:
            penstock.setLevel(logging.INFO)
    for handler in handlers:
        if handler.stream in _terminal():
            handler.setFormatter(JsonFormatter())


def is_json() -> bool:
    """Whether `log_as_json` has been called in this process."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def plain_text(text: str) -> str:
    """Without control characters, which could steer the terminal: names and errors come from anywhere."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def _terminal() -> tuple[Any, ...]:
    return sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a mistake in a call to the log must not cost its line
        return f"{record.msg} {record.args!r} ({type(error).__name__}: {error})"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return masked(str(value))


def _exception(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": type(error).__name__, "message": masked(str(error))}
    if isinstance(error, PenstockError):
        fields |= {"happened": error.happened, "safe": error.safe, "to_do": error.to_do}
    fields["trace"] = masked("".join(traceback.format_exception(error)))
    return fields
