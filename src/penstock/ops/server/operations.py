"""Long work that was asked for over HTTP: started once for each request id, polled, and its answer kept."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ControlError, PenstockError
from penstock.progress import Progress, Step

MAX_ANSWERS = 1000  # answers; a request repeated after that many others is taken for a new one

MOST_RUNNING = 16  # each has a thread


@dataclass
class Operation:
    """`answer` or `error` is set once it is over; `fetched`, once somebody has been told."""

    kind: str
    answer: dict[str, Any] | None = None
    error: BaseException | None = None
    step: Step | None = None  # how far it is
    over: threading.Event = field(default_factory=threading.Event)
    fetched: threading.Event = field(default_factory=threading.Event)


class Operations:
    """All that was asked of one job. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Operation] = OrderedDict()
        self._closed: str | None = None

    def start(self, kind: str, request: str | None, work: Callable[[str], dict[str, Any]]) -> str:
        """Do `work(request id)` in a thread of its own, and return that id at once. An id that is known already is not
        done again."""
        request = request or uuid.uuid4().hex
        with self._lock:
            known = self._all.get(request)
            if known is not None:
                if known.kind == kind:
                    return request
                raise ControlError(
                    f"The request {request} was a {known.kind} before and is a {kind} now.",
                    safe="nothing was done.",
                    to_do="give each request an id of its own.",
                )
            if self._closed is not None:
                raise ControlError(self._closed, safe="nothing was done.")
            if sum(not one.over.is_set() for one in self._all.values()) >= MOST_RUNNING:
                raise ControlError(
                    f"The job already works on {MOST_RUNNING} requests.",
                    safe="nothing was done.",
                    to_do="ask again when one of them is over.",
                )
            self._all[request] = operation = Operation(kind)
            while len(self._all) > MAX_ANSWERS and next(iter(self._all.values())).over.is_set():
                self._all.popitem(last=False)
        threading.Thread(target=self._do, args=(operation, request, work), name=f"penstock-{kind}", daemon=True).start()
        return request

    def get(self, kind: str, request: str) -> Operation | None:
        with self._lock:
            operation = self._all.get(request)
        return operation if operation is not None and operation.kind == kind else None

    def progress(self, request: str) -> Progress:
        """Takes down how far the work of this request is, for those who ask after it."""

        def tell(step: Step) -> None:
            with self._lock:
                operation = self._all.get(request)
            if operation is not None:
                operation.step = step

        return tell

    def close(self, because: str, *, finish: float, fetch: float) -> None:
        """The job has ended: take nothing new, give what is under way `finish` seconds to come to its end and whoever
        asked `fetch` seconds to learn of it. What does not end is answered with an error that says `because`."""
        with self._lock:
            self._closed = because
            left = [operation for operation in self._all.values() if not operation.fetched.is_set()]
        end = time.monotonic() + finish
        for operation in left:
            if not operation.over.wait(max(0.0, end - time.monotonic())):
                self._over(operation, None, ControlError(because, safe="what was decided is safe."))
        end = time.monotonic() + fetch
        for operation in left:
            operation.fetched.wait(max(0.0, end - time.monotonic()))

    def _do(self, operation: Operation, request: str, work: Callable[[str], dict[str, Any]]) -> None:
        try:
            answer, error = work(request), None
        except BaseException as failed:  # whatever it is, whoever asked is told
            answer, error = None, failed
        self._over(operation, answer, error)

    def _over(self, operation: Operation, answer: dict[str, Any] | None, error: BaseException | None) -> None:
        with self._lock:
            if not operation.over.is_set():
                operation.answer, operation.error = answer, error
                operation.over.set()


def as_penstock_error(error: BaseException) -> PenstockError:
    """An error of ours as it is, a stranger's with its name."""
    return error if isinstance(error, PenstockError) else ControlError(f"{type(error).__name__}: {error}")
