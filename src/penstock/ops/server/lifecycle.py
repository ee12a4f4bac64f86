"""The state a job is in, from its events, from what it was asked, and from how it ended; told to the registry."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from penstock.errors import JobStopped
from penstock.ops.process.registration import Registration, error_fields
from penstock.ops.process.registry import State, now_ms
from penstock.progress import Progress, Step, silent


class Steerable(Protocol):
    """A running job, called from threads that are not its own. Every method raises a `PenstockError` where it cannot
    do what it is asked."""

    name: str

    def savepoint(self, directory: str | None = None, *, kind: str = "native", progress: Progress = silent) -> str:
        """Take a savepoint while the job goes on. Blocks; returns its path. `progress` is told how far it is."""

    def checkpoint(self) -> int:
        """Complete a checkpoint now. Blocks; returns its number."""

    def stop_with_savepoint(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        kind: str = "native",
        cancel: bool = False,
        progress: Progress = silent,
    ) -> str:
        """Finish the epoch under way, take a savepoint, end. Blocks until there is a path; the job then ends, and with
        `cancel` it counts as cancelled."""

    def stop(self) -> None:
        """Ask for a clean end; returns at once."""

    def cancel(self) -> None:
        """Ask for an end without waiting for the epoch under way; returns at once."""

    def status(self) -> dict[str, Any]:
        """`{"state": "RUNNING", "queries": {uid: {"epoch": 12, "generation": 3, …}}, "restarts": 0}`; never blocks."""


_BY_EVENT = {"started": State.RUNNING, "opened": State.RUNNING, "restarting": State.RESTARTING}


class Lifecycle:
    """One run. States go forward only: a job that is being cancelled is not running again, an ended one has ended."""

    def __init__(self, job: Steerable, registration: Registration) -> None:
        self._job, self._registration = job, registration
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
        """An `Events` listener. It is called by the job's own threads, so it asks the job nothing."""
        name = str(event.get("event"))
        if name == "savepoint" and event.get("path"):
            self._registration.update(savepoint=str(event["path"]))
        elif name == "restoring" and (step := Step.of(event)) is not None:
            self._registration.update(progress=step.to_dict())
        elif name in _BY_EVENT:
            self._registration.update(progress=None)
            self._enter(_BY_EVENT[name])
            if name == "restarting":
                self._registration.update(restarts=self._registration.entry.restarts + 1)

    def status(self) -> dict[str, Any]:
        """What the job says of itself; its word counts where it knows more than its events have told."""
        try:
            status = dict(self._job.status())
        except Exception:  # it is on its way in or out, and whoever asks still gets what is known
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
        """Around what ends the job, if it works out: an end then counts as cancelled, however soon it comes."""
        self._cancel_at_end = True
        try:
            yield
        except BaseException:
            self._cancel_at_end = False
            raise

    def savepoint(self, path: str, request: str) -> None:
        self._registration.update(savepoint=path, savepoint_request=request)

    def ended(self, error: BaseException | None) -> None:
        """The job has ended. A supervisor may still start it again, so to it a failure is not the end."""
        if isinstance(error, (JobStopped, KeyboardInterrupt)):
            error = None
        if error is not None:
            state = State.FAILING if self._registration.entry.supervised else State.FAILED
            self._enter(
                state, error=error_fields(error), end=None if state is State.FAILING else now_ms(), address=None
            )
            return
        reported = self.status().get("state")
        canceled = (
            self._cancel_at_end or self.state is State.CANCELLING or reported in (State.CANCELED, State.CANCELLING)
        )
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
