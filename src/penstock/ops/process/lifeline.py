"""The line between a supervisor and a driver that it has started: a pair of sockets, one JSON object per line.

The supervisor sends `Orders`, and a standby one more line, `go`; the driver sends fields of its `DriverReport`. When
the line closes, the supervisor is gone, and the driver stops cleanly by a SIGTERM to itself: a job never runs on
unsupervised, on any system and whatever killed the supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.engine.restarts import ErrorClass, classify, error_chain, has_given_up, jvm_gone, out_of_memory
from penstock.errors import LeaseLost
from penstock.secrets import masked

if TYPE_CHECKING:
    from penstock.config.restart_strategy import RestartStrategy

VARIABLE = "PENSTOCK_SUPERVISOR"
"""The file descriptor of the driver's end of the line. The supervisor sets it, for its own child only."""

DONE = 0
FAILED = 1  # for good: no restart can cure it
GAVE_UP = 70  # the restart strategy gave up
CRASHED = 75  # a new process may cure it
LOST_TURN = 76  # another supervisor has the lease: the next driver waits for its turn

_MOST = 4000  # characters of an error; a driver's reports must fit into the line before the supervisor reads them
_END_SECONDS = 5.0  # a standby has nothing to finish


@dataclass(frozen=True)
class Orders:
    """What a supervisor tells a driver at its start. `turn` is the last turn of the job's lease that it knows of;
    `expired` is the number of the lease's entry that it has seen expire while it waited without a driver."""

    standby: bool = False
    turn: int | None = None
    expired: int | None = None


_line: socket.socket | None = None
_turn: threading.Event | None = None  # of a standby: set when its turn has come
_orders = Orders()
_lease: dict[str, Any] = {}  # the last report of the lease


# The driver's side


def connect() -> None:
    """Take up the line, if a supervisor has started this process; its own children are not supervised."""
    global _line, _turn, _orders
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is None:
        return
    _line = socket.socket(fileno=int(descriptor))
    _line.set_inheritable(False)
    lines = _line.makefile("rb")
    _orders = Orders(**json.loads(lines.readline() or b"{}"))
    _turn = threading.Event() if _orders.standby else None
    threading.Thread(target=_watch, args=(lines,), name="penstock-lifeline", daemon=True).start()


def connected() -> bool:
    """Whether a supervisor has started this process."""
    return _line is not None


def is_standby() -> bool:
    """Whether this process has to wait for its turn."""
    return _turn is not None and not _turn.is_set()


def await_turn(seconds: float | None = None) -> bool:
    """Wait until this process may go on, at most that long; whether it may. Returns at once where it is no standby."""
    return _turn is None or _turn.wait(seconds)


def orders() -> Orders:
    """The supervisor's, with the turn that it gave a standby to go on with; none where there is no supervisor."""
    return _orders


def report_lease(turn: int, host: str, *, here: bool, path: str | None = None) -> None:
    """Report who holds the lease of the job. `path`: where the supervisor itself can read it."""
    global _lease
    before, _lease = _lease, {"turn": turn, "host": host, "here": here, "path": path}
    if _lease != before:
        report(lease=_lease)


def lease() -> dict[str, Any] | None:
    return _lease or None


def report(**fields: Any) -> None:
    """Report fields of a `DriverReport`. Safe in a signal handler. Does nothing without a supervisor; one that is gone,
    or does not read, is no reason to fail."""
    if _line is not None:
        with contextlib.suppress(OSError):
            _line.send(json.dumps(fields).encode() + b"\n", socket.MSG_DONTWAIT)


def report_error(error: BaseException, verdict: str) -> None:
    """The error that is about to end the driver."""
    report(error=masked(f"{type(error).__name__}: {error}")[:_MOST], verdict=verdict)


def status_of(error: BaseException) -> int:
    """The exit status of a program that fails with `error`. Only `CRASHED` asks for a restart, and, under a supervisor,
    `LOST_TURN` for another driver that waits. An unclassified error has already used up its job's restarts, or comes
    from the program around the job and would recur at once."""
    if any(isinstance(cause, LeaseLost) for cause in error_chain(error)) and connected():
        return LOST_TURN
    if has_given_up(error):
        return GAVE_UP
    verdict = classify(error)
    curable = verdict is ErrorClass.RETRY or jvm_gone(error) or out_of_memory(error)
    return CRASHED if curable and verdict is not ErrorClass.FATAL else FAILED


def _watch(lines: BinaryIO) -> None:
    global _orders
    try:
        for line in lines:
            if _turn is not None:  # `go` is all that a supervisor sends later
                _orders = replace(_orders, turn=json.loads(line).get("turn") or _orders.turn)
                _turn.set()
    except (OSError, ValueError):
        return  # closed in this process, by a program that closes every descriptor that it does not know
    os.kill(os.getpid(), signal.SIGTERM)


# The supervisor's side


@dataclass(frozen=True)
class LeaseReport:
    """Who holds the lease of the job, as a driver has seen it. `path`: the job's folder, where it is on a disk."""

    turn: int
    host: str
    here: bool
    path: str | None = None


@dataclass(frozen=True)
class DriverReport:
    """All that a driver has reported. `strategy`: the restart strategy, which the supervisor follows from then on.
    `stopping`: a stop was requested, so that however the job ends, it is not restarted. `ready`: a standby has done all
    it can before its turn. `running`: the job's queries are recovered and start."""

    strategy: RestartStrategy | None = None
    stopping: bool = False
    error: str | None = None
    verdict: str | None = None
    ready: bool = False
    running: bool = False
    lease: LeaseReport | None = None


class Receiver:
    def __init__(self, line: socket.socket) -> None:
        self._line, self._tail = line, b""
        self._fields: dict[str, Any] = {}
        self.ended = False  # no more reports can come

    def report(self) -> DriverReport:
        """Everything so far. A line that is incomplete or not understood does not count."""
        from penstock.config.restart_strategy import RestartStrategy

        self._receive()
        fields, strategy, lease = self._fields, None, None
        with contextlib.suppress(TypeError, KeyError):
            strategy = RestartStrategy.from_dict(fields["strategy"])
        with contextlib.suppress(TypeError, KeyError):
            lease = LeaseReport(**fields["lease"])
        flags = {name: bool(fields.get(name)) for name in ("stopping", "ready", "running")}
        return DriverReport(strategy, error=fields.get("error"), verdict=fields.get("verdict"), lease=lease, **flags)

    def _receive(self) -> None:
        try:
            while part := self._line.recv(65536, socket.MSG_DONTWAIT):
                self._tail += part
            self.ended = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.ended = True
        *lines, self._tail = self._tail.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                self._fields.update(json.loads(line))


@dataclass(frozen=True)
class DriverRun:
    """One run of a driver, after its end."""

    status: int
    report: DriverReport

    @property
    def reason(self) -> str:
        if self.status < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by {names.get(-self.status, f'signal {-self.status}')}"
        cause = f" ({self.report.error.splitlines()[0]})" if self.report.error else ""
        return f"ended with status {self.status}{cause}"


class Driver:
    """A driver in a session of its own; a standby waits for `take_over`. Raises OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], orders: Orders) -> None:
        self._line, their_end = socket.socketpair()
        self._receiver = Receiver(self._line)
        send(self._line, asdict(orders))
        try:
            with their_end:
                self._process = subprocess.Popen(
                    command,
                    env={**os.environ, VARIABLE: str(their_end.fileno())},
                    pass_fds=[their_end.fileno()],
                    start_new_session=True,  # so that Ctrl-C arrives once, and leftovers can be found
                )
        except OSError:
            self._line.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def line(self) -> socket.socket | None:
        """Readable when the driver has sent a report; None once no more can come."""
        return None if self._receiver.ended else self._line

    @property
    def report(self) -> DriverReport:
        return self._receiver.report()

    def ended(self) -> DriverRun | None:
        status = self._process.poll()
        return None if status is None else DriverRun(status, self.report)

    def take_over(self, turn: int | None = None) -> None:
        """Tell a standby to go on, and the last turn of the lease. One that has died meanwhile shows so by its end."""
        with contextlib.suppress(OSError):
            send(self._line, {"go": True, "turn": turn})

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """End a standby, which has nothing to finish. Returns when the process is gone; its children may not be."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        self._line.close()


def send(line: socket.socket, body: dict[str, Any]) -> None:
    """Send a line to a driver. Raises OSError where it is gone."""
    line.send(json.dumps(body).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
