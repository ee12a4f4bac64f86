"""A running job under control: the state it is in, and the long work that was requested of it over HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from penstock.engine.control import Steerable
from penstock.errors import ControlError, JobStopped, PenstockError
from penstock.ops.process.registry import Registration, State, error_fields, now_ms
from penstock.progress import Progress, Step

MAX_ANSWERS = 1000  # answers that are kept; a request that is repeated after that many others counts as a new one
MOST_RUNNING = 16  # each has a thread
_BY_EVENT = {"started": State.RUNNING, "opened": State.RUNNING, "restarting": State.RESTARTING}


class Lifecycle:
    """A run's state, written to the registry. It goes forward only: what is cancelled does not run again."""

    def __init__(self, job: Steerable, registration: Registration) -> None:
        self.job, self._registration = job, registration
        self._lock = threading.Lock()
        self._cancel_at_end = False
        self._since: dict[State, int] = {registration.entry.state: registration.entry.start}

    @property
    def state(self) -> State:
        return self._registration.entry.state

    @property
    def since(self) -> Mapping[State, int]:
        """When each state was last entered, in milliseconds."""
        with self._lock:
            return dict(self._since)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An `Events` listener. The job's own threads call it, so it asks the job nothing."""
        name = str(event.get("event"))
        if name == "savepoint" and event.get("path"):
            self._registration.update(savepoint=str(event["path"]))
        elif name == "restoring" and (step := Step.of(event)) is not None:
            self._registration.update(progress=asdict(step))
        elif name in _BY_EVENT:
            self._registration.update(progress=None)
            self._enter(_BY_EVENT[name])
            if name == "restarting":
                self._registration.update(restarts=self._registration.entry.restarts + 1)

    def status(self) -> dict[str, Any]:
        """What the job reports of itself; its report wins where it is ahead of its events."""
        try:
            status = dict(self.job.status())
        except Exception:  # it starts or ends, and what is known is answered all the same
            return {}
        with contextlib.suppress(ValueError):
            reported = State(str(status.get("state")))
            if not reported.ended:
                self._enter(reported)
        return status

    def cancelling(self) -> None:
        self._enter(State.CANCELLING)

    @contextmanager
    def cancelling_at_end(self) -> Iterator[None]:
        """Around what ends the job, if it succeeds: the end then counts as cancelled, however soon it comes."""
        self._cancel_at_end = True
        try:
            yield
        except BaseException:
            self._cancel_at_end = False
            raise

    def savepoint(self, path: str, request: str) -> None:
        self._registration.update(savepoint=path, savepoint_request=request)

    def ended(self, error: BaseException | None) -> None:
        """The job has ended. To a supervisor, which may start it again, a failure is not the end."""
        if error is not None and not isinstance(error, (JobStopped, KeyboardInterrupt)):
            state = State.FAILING if self._registration.entry.supervised else State.FAILED
            end = None if state is State.FAILING else now_ms()
            self._enter(state, error=error_fields(error), end=end, address=None)
            return
        states = (self.status().get("state"), self.state)
        canceled = self._cancel_at_end or any(state in states for state in (State.CANCELED, State.CANCELLING))
        self._enter(State.CANCELED if canceled else State.FINISHED, end=now_ms())

    def _enter(self, state: State, **more: Any) -> None:
        with self._lock:
            now = self.state
            if now.ended or (now is State.CANCELLING and not state.ended and state is not State.FAILING):
                return
            if state is not now:
                self._since[state] = now_ms()
            if state is not now or more:
                self._registration.update(state=state, **more)


class Operation(Future[dict[str, Any]]):
    """`step` says how far it is; `fetched` is set once a client has received its result."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.fetched = kind, threading.Event()
        self.step: Step | None = None


class Operations:
    """The long work of one server: started once for each request id, polled, its answer kept. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Operation] = OrderedDict()
        self._closed: str | None = None

    def start(self, kind: str, request: str | None, work: Callable[[str], dict[str, Any]]) -> str:
        """Run `work(request id)` in a thread of its own, unless the id is known, and return the id at once."""
        request = request or uuid.uuid4().hex
        with self._lock:
            known = self._all.get(request)
            if known is not None:
                if known.kind == kind:
                    return request
                happened = f"The request {request} was a {known.kind} before and is a {kind} now."
                raise ControlError(happened, safe="nothing was done.", to_do="give each request an id of its own.")
            if self._closed is not None:
                raise ControlError(self._closed, safe="nothing was done.")
            if sum(not operation.done() for operation in self._all.values()) >= MOST_RUNNING:
                happened = f"The job already works on {MOST_RUNNING} requests."
                raise ControlError(happened, safe="nothing was done.", to_do="ask again when one of them is over.")
            self._all[request] = operation = Operation(kind)
            while len(self._all) > MAX_ANSWERS and next(iter(self._all.values())).done():
                self._all.popitem(last=False)
        threading.Thread(target=_do, args=(operation, request, work), name=f"penstock-{kind}", daemon=True).start()
        return request

    def get(self, kind: str, request: str) -> Operation | None:
        with self._lock:
            operation = self._all.get(request)
        return operation if operation is not None and operation.kind == kind else None

    def progress(self, request: str) -> Progress:
        """Records how far the work of this request is, for its polls."""

        def record(step: Step) -> None:
            with self._lock:
                if request in self._all:
                    self._all[request].step = step

        return record

    def close(self, because: str, *, finish: float, fetch: float) -> None:
        """The job has ended: refuse new work, give the running work `finish` seconds to end and its clients `fetch`
        seconds to fetch the answers. Work that does not end is answered with an error that says `because`."""
        with self._lock:
            self._closed = because
            unfetched = [operation for operation in self._all.values() if not operation.fetched.is_set()]
        for operation in wait(unfetched, finish).not_done:
            with contextlib.suppress(InvalidStateError):  # it has just ended
                operation.set_exception(ControlError(because, safe="what was decided is safe."))
        end = time.monotonic() + fetch
        for operation in unfetched:
            operation.fetched.wait(max(0.0, end - time.monotonic()))


def _do(operation: Operation, request: str, work: Callable[[str], dict[str, Any]]) -> None:
    with contextlib.suppress(InvalidStateError):  # the server has ended, and answered in its place
        try:
            operation.set_result(work(request))
        except BaseException as failure:  # of any kind: the client that polls must learn of it
            operation.set_exception(failure)


def as_penstock_error(error: BaseException) -> PenstockError:
    """Penstock's errors as they are, others with the name of their class."""
    return error if isinstance(error, PenstockError) else ControlError(f"{type(error).__name__}: {error}")
