"""What operations add to a run: its turn, its lease, its supervisor's line, signals, the registry and the HTTP server.

`Job.run` opens `attached` around the run, by the one import that points upward. Nothing below operations knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.engine.steering import EndRequest
from penstock.ops.insight import JobInsight
from penstock.ops.process import lifeline
from penstock.ops.process.lifeline import stop_on_signals
from penstock.ops.server.serving import serving
from penstock.ops.turn import TurnEnd, held, lease_of, settings_of_turn, take_turn

if TYPE_CHECKING:
    from penstock.engine.run import JobRun
    from penstock.engine.steering import Steering

_TURN_ENDS = {
    EndRequest.NONE: TurnEnd.DONE,
    EndRequest.STOP: TurnEnd.STOPPED,
    EndRequest.CANCEL: TurnEnd.CANCELLED,
}


@contextmanager
def attached(run: JobRun) -> Iterator[None]:
    """Wait for the turn of this driver; then, while the run lasts, hold its lease, stop on signals, serve it."""
    steering = run.steering
    lease = lease_of(run.name, run.settings, run.checkpoints, run.spark)
    take_turn(run.spark, run.sinks.values(), run.sources, run.readiness.look, lease)
    run.settings = settings_of_turn(lease, run.settings)
    run.restarts.supervised = lifeline.connected()
    run.events.listen(report_running)
    lifeline.report_strategy(run.settings.restart)
    steering.on_stop = lifeline.report_stopping
    if steering.request is not EndRequest.NONE:
        lifeline.report_stopping()
    with (
        held(lease, lambda: _turn_end(steering)),
        stop_on_signals(steering.shut_down),
        serving(steering, run.settings, run.events, JobInsight(run)),
    ):
        yield


def report_running(event: Mapping[str, Any]) -> None:
    """A listener that tells the supervisor when the job runs: only then is it time for a standby."""
    if event.get("event") == "recovered":
        lifeline.report_running()


def _turn_end(steering: Steering) -> TurnEnd:
    return TurnEnd.HANDED_OVER if steering.signalled else _TURN_ENDS[steering.request]
