"""The line between a supervisor and the driver it has started: a pair of sockets.

The driver tells what it runs with and what it ended of, one JSON object per line. The other way a standby is told,
once, that its turn has come, and nothing else is ever said: when that side falls silent for good, the supervisor is
gone, and the driver ends cleanly by a SIGTERM to itself. So nobody is left to run a job that nobody looks after, on any
system and whatever the supervisor died of. `stop_on_signals` is how a job takes that signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.engine.restarts import ErrorClass, classify, error_chain, has_given_up, jvm_gone, out_of_memory
from penstock.errors import LeaseLost
from penstock.secrets import masked

if TYPE_CHECKING:
    from penstock.config.restart_strategy import RestartStrategy


VARIABLE = "PENSTOCK_SUPERVISOR"
"""The number of the driver's end of the line. Set by the supervisor, for its own child only."""

STANDBY_VARIABLE = "PENSTOCK_STANDBY"
"""Set beside the other for a driver that is to wait for its turn."""

DONE = 0
FAILED = 1  # for good: no restart can cure it
GAVE_UP = 70  # the restart strategy gave up
CRASHED = 75  # a new process may cure it
LOST_TURN = 76  # somebody else has the lease: the next driver waits for its turn

_MOST = 4000  # characters of an error; all that is told must fit into the line before anybody reads it

TURN_VARIABLE = "PENSTOCK_LEASE_TURN"
"""The last turn of the job's lease that the supervisor knows of, for a driver that it starts later."""

OVER_VARIABLE = "PENSTOCK_LEASE_OVER"
"""The number of the word of the lease that has run out, as a supervisor has seen that waited without a driver."""

_GO = b"go"

_line: socket.socket | None = None
_turn: threading.Event | None = None  # of a standby: set when its turn has come
_known: int | None = None  # the last turn of the lease that the supervisor has told
_over: int | None = None  # the word of the lease that the supervisor has seen run out
_lease: dict[str, Any] = {}  # what was last told of the lease


# The driver's side


def connect() -> None:
    """Take up the line, if a supervisor has started this process. Its children must not take themselves for
    supervised, so the variables go."""
    global _line, _turn, _known, _over
    number, standby = os.environ.pop(VARIABLE, None), os.environ.pop(STANDBY_VARIABLE, None)
    known, over = os.environ.pop(TURN_VARIABLE, ""), os.environ.pop(OVER_VARIABLE, "")
    if number is None:
        return
    _known, _over = int(known) if known else None, int(over) if over else None
    _turn = threading.Event() if standby else None
    _line = socket.socket(fileno=int(number))
    _line.set_inheritable(False)
    threading.Thread(target=_watch, args=(_line,), name="penstock-lifeline", daemon=True).start()


def connected() -> bool:
    """Whether a supervisor has started this process."""
    return _line is not None


def is_standby() -> bool:
    """Whether this process has to wait for its turn."""
    return _turn is not None and not _turn.is_set()


def await_turn(seconds: float | None = None) -> bool:
    """Wait until this process may go on, at most that long; whether it may. At once where it is no standby."""
    return _turn is None or _turn.wait(seconds)


def known_turn() -> int | None:
    """The last turn of the job's lease that the supervisor knows of; None where it has just begun."""
    return _known


def lease_over() -> int | None:
    """The number of the word of the lease that the supervisor has seen run out, if it has."""
    return _over


def tell_lease(turn: int, host: str, *, here: bool, path: str | None = None) -> None:
    """Who has the lease of the job. `path`: where the supervisor itself can see it."""
    global _lease
    told = {"turn": turn, "host": host, "here": here, "path": path}
    if told != _lease:
        _lease = told
        _tell({"lease": told})


def lease() -> dict[str, Any] | None:
    """What was last told of the lease."""
    return _lease or None


def tell_ready() -> None:
    """A standby has done all it can before its turn."""
    _tell({"ready": True})


def tell_running() -> None:
    """The job's queries are recovered and start."""
    _tell({"running": True})


def tell_strategy(strategy: RestartStrategy) -> None:
    """The strategy that the job has come to; the supervisor goes by it from then on. Safe where there is none."""
    _tell({"strategy": strategy.to_dict()})


def tell_stopping() -> None:
    """The job was asked to end, so whatever it ends with, it is not to be started again. Safe in a signal handler."""
    _tell({"stopping": True})


def tell_error(error: BaseException, verdict: str) -> None:
    """What the driver is about to end of."""
    _tell({"error": masked(f"{type(error).__name__}: {error}")[:_MOST], "verdict": verdict})


def status_of(error: BaseException) -> int:
    """The exit status of a program that fails with `error`. Only `CRASHED` asks for a restart, and, under a supervisor,
    `LOST_TURN` for another driver that waits.

    An unclassified error has already used up its job's restarts, or comes from the program around the job and would
    recur at once.
    """
    if any(isinstance(cause, LeaseLost) for cause in error_chain(error)) and connected():
        return LOST_TURN
    if has_given_up(error):
        return GAVE_UP
    verdict = classify(error)
    if verdict is ErrorClass.FATAL:
        return FAILED
    return CRASHED if verdict is ErrorClass.RETRY or jvm_gone(error) or out_of_memory(error) else FAILED


def _tell(body: dict[str, Any]) -> None:
    if _line is not None:
        # A supervisor that is gone, or told too much, is no reason to fail.
        with contextlib.suppress(OSError):
            _line.send(json.dumps(body).encode() + b"\n", socket.MSG_DONTWAIT)


def _watch(line: socket.socket) -> None:
    try:
        while word := line.recv(1024):  # it is the only word there is
            if _turn is not None:
                _take_in(word)
                _turn.set()
    except OSError:
        return  # closed in this process: by a program that closes all it does not know
    os.kill(os.getpid(), signal.SIGTERM)


def _take_in(word: bytes) -> None:
    global _known
    known = word.removeprefix(_GO).strip()
    if known.isdigit():
        _known = int(known)


# The supervisor's side


@dataclass(frozen=True)
class LeaseReport:
    """Who has the lease of the job, as a driver has seen it. `path`: the job's folder, where it is on a disk."""

    turn: int
    host: str
    here: bool
    path: str | None = None


@dataclass(frozen=True)
class DriverReport:
    """What a driver said before it ended."""

    strategy: RestartStrategy | None = None
    stopping: bool = False
    error: str | None = None
    verdict: str | None = None
    ready: bool = False
    running: bool = False
    lease: LeaseReport | None = None


class Hearing:
    """What one driver says, as often as one asks."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""
        self._said: dict[str, Any] = {}
        self.ended = False  # nothing more can be said

    def report(self) -> DriverReport:
        """All that was said so far. A line that is cut off, or not understood, counts as not said."""
        from penstock.config.restart_strategy import RestartStrategy

        self._listen()
        said, strategy = self._said, None
        if "strategy" in said:
            with contextlib.suppress(TypeError):
                strategy = RestartStrategy.from_dict(said["strategy"])
        flags = {name: bool(said.get(name)) for name in ("stopping", "ready", "running")}
        lease = None
        if "lease" in said:
            with contextlib.suppress(TypeError):
                lease = LeaseReport(**said["lease"])
        return DriverReport(strategy, error=said.get("error"), verdict=said.get("verdict"), lease=lease, **flags)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                while part := self._line.recv(65536, socket.MSG_DONTWAIT):
                    self._rest += part
                self.ended = True
            except ConnectionResetError:
                self.ended = True
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                self._said.update(json.loads(line))


def say_go(line: socket.socket, known: int | None = None) -> None:
    """Tell a standby that its turn has come, and the last turn of the lease. Raises OSError where it is gone."""
    line.send(_GO + (b"" if known is None else b" %d" % known) + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop cleanly while the job runs. Only the main thread may install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
