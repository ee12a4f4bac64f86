"""`penstock run` as a process of its own, with what its supervisor has said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.processes import session_members
from tests.support.processes import JobProcess

MAIN = "from penstock.cli.main import main; main()"
OFTEN = (
    "-Drestart-strategy.type=fixed-delay",
    "-Drestart-strategy.fixed-delay.attempts=99",
    "-Drestart-strategy.fixed-delay.delay=20ms",
)

#: A standby is started as soon as the job runs, not when it has settled.
EAGER = "from penstock.ops.process import supervisor; supervisor.SETTLE_SECONDS = 0.0"


class Supervised(JobProcess):
    """`penstock run`. Each driver opens a session of its own."""

    def __init__(self, folder: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        super().__init__(Path("-c"), [f"{EAGER}; {MAIN}", "run", *arguments], folder, environment=environment)

    @property
    def drivers(self) -> list[int]:
        """Those that ran the job, one after the other."""
        return [event["pid"] for event in self.told() if event["action"] == "started"]

    @property
    def standbys(self) -> list[int]:
        """All that were started to wait."""
        return [event["pid"] for event in self.told() if event["action"] == "standby"]

    def ready(self, standby: int) -> bool:
        return any(event["action"] == "standby_ready" and event["pid"] == standby for event in self.told())

    def told(self) -> list[dict[str, Any]]:
        return self.events("supervisor")

    def actions(self) -> list[str]:
        return [event["action"] for event in self.told()]

    def members(self) -> list[int]:
        drivers = {*self.drivers, *self.standbys}
        return [*super().members(), *(pid for driver in drivers for pid in session_members(driver))]
