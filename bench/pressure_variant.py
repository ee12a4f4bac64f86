"""One variant of the back-pressure benchmark, in a process of its own; prints one JSON line at its end.

Rows come at a fixed rate, whatever the job does with them. The sink first keeps up, then takes a tenth of the rate,
then as much as there is.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory import PeakMemory
from penstock import Checkpoints, DataGenSource, Job, KafkaSink, RestartStrategy
from pressure_figures import Phases, catch_up, figures, visible_rows
from pressure_topic import COLUMNS
from throttled_sink import ThrottledSink, Valve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PARTITIONS = 2
COLD = 3  # checkpoints before the warm-up begins: class loading, JIT, connections


class Tap:
    """Follows a job's events, turns the valve when its time has come, and stops the job when all is delivered."""

    def __init__(self, job: Job, valve: Valve, given: Mapping[str, Any]) -> None:
        self._job, self._valve, self._given = job, valve, given
        self._heard = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.events: list[Mapping[str, Any]] = []
        self.phases: Phases | None = None

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._heard:
            self._over = True
            self._heard.notify_all()
        self._thread.join()

    def __call__(self, event: Mapping[str, Any]) -> None:
        with self._heard:
            self.events.append(event)
            self._heard.notify_all()

    def _run(self) -> None:
        given = self._given
        # What must have happened is there at once in a full run; it lets a short one tell the same on any machine.
        sign = "logged" if given["checkpoints"].get("unaligned") else "completed"
        self._after(0, lambda: self._since(0, "completed") >= COLD)
        calm = self._after(given["warm_up"])
        pressure = self._after(given["calm"], lambda: self._since(calm, "completed") >= 2)  # the second is within it
        self._valve.turn(given["rate"] * given["share"])
        relief = self._after(given["pressure"], lambda: self._since(pressure, sign) >= 1)
        self._valve.turn(None)
        self._after(given["tail"], lambda: catch_up(self.events, relief, given["rate"]) is not None)
        self.phases = Phases(calm, pressure, relief)
        self._job.stop()

    def _after(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> float:
        """The moment when so much time has passed, and also enough has happened."""
        end = time.monotonic() + seconds
        with self._heard:
            while not self._over and ((left := end - time.monotonic()) > 0 or not enough()):
                self._heard.wait(max(0.0, left) or None)
        return time.time()

    def _since(self, moment: float, event: str) -> int:
        return sum(one["event"] == event and one["time"] >= moment for one in self.events)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    valve = Valve(given["valve"])
    valve.turn(None)
    job = Job(
        "pressure",
        checkpoints=Checkpoints(interval=given["interval"], storage=given["checkpoint"], **given["checkpoints"]),
        restart=RestartStrategy.none(),
    )
    source = DataGenSource(rate=given["rate"], partitions=PARTITIONS, columns=COLUMNS)
    sink = ThrottledSink(KafkaSink(given["target"], servers=given["servers"]), valve, PARTITIONS)
    job.write(job.read(source, uid="in"), sink, uid="out")
    with Tap(job, valve, given) as tap, PeakMemory() as peak:
        job.run(on_event=tap)
    assert tap.phases is not None
    return {
        **figures(tap.events, tap.phases, given["rate"]),
        "rows": visible_rows(tap.events),
        "peak_megabytes": peak.megabytes,
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    Path(given["checkpoint"]).mkdir(parents=True, exist_ok=True)
    print(json.dumps(run(given)))
