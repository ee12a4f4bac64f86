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
from pressure_figures import Phases, figures
from pressure_rows import COLUMNS
from throttled_sink import ThrottledSink, Valve

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTITIONS = 2


class Tap:
    """Follows a job's events and turns the valve when its time has come, counted from the first epoch."""

    def __init__(self, valve: Valve, given: Mapping[str, Any]) -> None:
        self._valve, self._given = valve, given
        self.events: list[Mapping[str, Any]] = []
        self.phases: Phases | None = None
        self._ended = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._first.set()
        self._thread.join()

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == "opened":
            self._first.set()

    def _run(self) -> None:
        self._first.wait()
        calm = time.time() + self._given["warm_up"]
        pressure = self._turn(calm + self._given["calm"], self._given["rate"] * self._given["share"])
        relief = self._turn(pressure + self._given["pressure"], None)
        self.phases = Phases(calm, pressure, relief)

    def _turn(self, moment: float, limit: float | None) -> float:
        self._ended.wait(max(0.0, moment - time.time()))
        self._valve.turn(limit)
        return time.time()


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    valve = Valve(given["valve"])
    valve.turn(None)
    seconds = given["warm_up"] + given["calm"] + given["pressure"] + given["tail"]
    rows = int(given["rate"] * seconds)
    job = Job(
        "pressure",
        checkpoints=Checkpoints(interval=given["interval"], storage=given["checkpoint"], **given["checkpoints"]),
        restart=RestartStrategy.none(),
    )
    source = DataGenSource(rows, rate=given["rate"], partitions=PARTITIONS, columns=COLUMNS)
    sink = ThrottledSink(KafkaSink(given["target"], servers=given["servers"]), valve, PARTITIONS)
    job.write(job.read(source, uid="in"), sink, uid="out")
    with Tap(valve, given) as tap, PeakMemory() as peak:
        job.run(on_event=tap)
    assert tap.phases is not None
    return {**figures(tap.events, tap.phases, given["rate"]), "rows": rows, "peak_megabytes": peak.megabytes}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    Path(given["checkpoint"]).mkdir(parents=True, exist_ok=True)
    print(json.dumps(run(given)))
