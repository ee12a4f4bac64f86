"""Log lines that machines read: one JSON object each, with the job, query, epoch and sink that it is about.

What a line is about is said by whoever does the work, with `bound`, and holds for every line that the same thread logs
meanwhile, also for those of a sink's own client. Text stays as the program has set its logging up.
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

FIELDS = ("job", "query", "epoch", "sink")
"""What a line may be about, in this order."""

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_context: ContextVar[Mapping[str, Any]] = ContextVar("penstock_log_context")
_of_process: dict[str, Any] = {}


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """While this lasts, lines of this thread are about these `FIELDS`, too. One that is None says nothing."""
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
        # What the call itself says of its line, with `extra`, wins.
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
    """Lines as `inner` writes them, masked and fit for a terminal: a client library may quote the address that it was
    given, and an error a row."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(masked(self._inner.format(record)))


def set_up(job: str, *, as_json: bool) -> None:
    """What this process logs to its terminal from now on; see `log_as_json` and `mask_log`."""
    if as_json:
        log_as_json(job=job)
    else:
        mask_log()


def mask_log() -> None:
    """From now on what this process logs to its terminal as text is masked, whichever library says it. Handlers that
    the program makes later stay as they are, as do files."""
    for handler in (*logging.getLogger().handlers, logging.lastResort):
        if isinstance(handler, logging.StreamHandler) and handler.stream in _terminal():
            inner = handler.formatter or logging.Formatter()
            if not isinstance(inner, MaskedFormatter | JsonFormatter):
                handler.setFormatter(MaskedFormatter(inner))


def log_as_json(*, job: str | None = None) -> None:
    """From now on what this process logs to its terminal is JSON; calling it again changes only the job's name.

    Handlers of the program's own that write to stdout or stderr stay, with their levels. Where it has none, one is made
    for stderr, and Penstock tells from INFO on. Files and other handlers stay as they are."""
    if job is not None:
        _of_process["job"] = job
    root = logging.getLogger()
    handlers = [one for one in root.handlers if type(one) is logging.StreamHandler]
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
    """Without what could move the cursor or change colours: names and errors come from anywhere."""
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
    found: dict[str, Any] = {"type": type(error).__name__, "message": masked(str(error))}
    if isinstance(error, PenstockError):
        found |= {"happened": error.happened, "safe": error.safe, "to_do": error.to_do}
    found["trace"] = masked("".join(traceback.format_exception(error)))
    return found
