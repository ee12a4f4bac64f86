"""One driver, as its supervisor sees it: a process, the line to it, and what it has said so far."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import DriverReport

_END_SECONDS = 5.0  # a standby has nothing to finish


@dataclass(frozen=True)
class DriverRun:
    """One run of a driver, after its end."""

    status: int
    report: DriverReport

    @property
    def reason(self) -> str:
        if self.status < 0:
            return f"was killed by {_name(-self.status)}"
        cause = f" ({self.report.error.splitlines()[0]})" if self.report.error else ""
        return f"ended with status {self.status}{cause}"


class Driver:
    """A driver that was just started, in a session of its own. Raises OSError where there is no process left for it.
    A `standby` waits for `take_over` before it touches anything."""

    def __init__(self, command: Sequence[str], *, standby: bool = False) -> None:
        self._line, theirs = socket.socketpair()
        self._heard = lifeline.Hearing(self._line)
        self.standby = standby
        variables = {lifeline.VARIABLE: str(theirs.fileno())} | ({lifeline.STANDBY_VARIABLE: "1"} if standby else {})
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    env={**os.environ, **variables},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # so that Ctrl-C comes once, and leftovers can be found
                )
        except OSError:
            self._line.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def line(self) -> socket.socket | None:
        """Readable when the driver has said something; None once it cannot say more."""
        return None if self._heard.ended else self._line

    @property
    def report(self) -> DriverReport:
        """All that it has said so far."""
        return self._heard.report()

    def hear(self) -> None:
        """Take in what it has said meanwhile."""
        self._heard.report()

    def ended(self) -> DriverRun | None:
        """Its end, None while it runs."""
        status = self._process.poll()
        return None if status is None else DriverRun(status, self.report)

    def take_over(self, known: int | None = None) -> None:
        """Tell a standby that its turn has come, and the last turn of the lease. One that has died meanwhile says so by
        its end."""
        self.standby = False
        with contextlib.suppress(OSError):
            lifeline.say_go(self._line, known)

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
        """After its end."""
        self._line.close()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
