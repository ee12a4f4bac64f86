"""One job on a disk that loses what was not synced: runs up to a failpoint, power cuts, and the verdict at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock import failpoints
from penstock.testing.anomalies import Anomaly, Row, find_anomalies
from tests.support.jobs import power
from tests.support.jobs.power import PowerJob
from tests.support.power_record import Machine, RealDisk
from tests.support.processes import JobProcess
from tests.support.supervised import OFTEN, Supervised
from tests.support.waiting import until

SCRIPT = Path(power.__file__)
PATIENCE = 90.0
LEASE = "-Dhigh-availability.lease=6s"


class PowerWorld:
    """A job, its disk, and the seed of the next cut."""

    def __init__(
        self,
        folder: Path,
        *,
        machine: Machine | RealDisk | None = None,
        seed: int = 0,
        read: Callable[[PowerJob], list[int]] | None = None,
        **config: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.seed = folder, seed
        self.machine = machine or Machine(folder / "disk")
        self.config = PowerJob(f"job-{uuid4().hex[:12]}", str(self.machine.root), **config)
        self._once = folder / "once"
        self._read = read or read_files
        self.points: list[str] = []

    def cut_at(self, point: str, passing: int = 1) -> None:
        """Start the job; when it passes `point`, every process of it is killed and the power fails."""
        rules = {point: f"hang@{passing}"}
        if point == "epoch.aborted":
            rules["epoch.precommitted"] = "raise"
        with self.run(rules) as run:
            self._until(run, point, (self._once / point).exists)
            run.stop_all()  # so that no process outlives another
            run.kill()
        self._cut(point)

    def cut_takeover(self, point: str, death: str, passing: int = 1) -> None:
        """Two supervisors; the one that runs the job dies at `death`, with all its processes. The other has a standby,
        which takes over; when that passes `point`, it is killed and the power fails."""
        with self.supervised({death: f"hang@{passing}"}) as holder:
            self._until(holder, "the lease", lambda: "has_lease" in holder.actions())
            with self.supervised({point: "hang"}, "--standby") as waiting:
                self._until(waiting, "the wait for the lease", lambda: "awaits_lease" in waiting.actions())
                self._until(holder, death, (self._once / death).exists)
                holder.stop_all()
                holder.kill()
                self._until(waiting, point, (self._once / point).exists)
                waiting.stop_all()
                waiting.kill()
        self._cut(f"{death}, then {point}")

    def complete_supervised(self) -> None:
        """With the lease that a dead driver holds."""
        with self.supervised({}) as run:
            status = run.wait(PATIENCE)
        assert status == 0, f"exit {status}\n{self.story()}\n{run.tail(60)}"

    def _until(self, run: JobProcess, point: str, passed: Callable[[], bool]) -> None:
        until(
            lambda: passed() or run.status is not None,
            lambda: f"{point} to be passed\n{self.story()}\n{run.tail()}",
            PATIENCE,
        )
        assert passed(), f"{point} was never passed; exit {run.status}\n{self.story()}\n{run.tail(60)}"

    def _cut(self, points: str) -> None:
        for passed in self._once.iterdir():
            passed.unlink()
        self.points.append(points)
        self.machine.cut(self.seed)
        self.seed += 1

    def finish(self) -> None:
        """The job comes up by itself, runs to its end, and nothing is lost or doubled; and what it has completed is
        still there when the power fails once more."""
        self.complete()
        anomalies = self.anomalies()
        assert not anomalies, f"{anomalies}\n{self.story()}"
        self.machine.cut(0)
        anomalies = self.anomalies()
        assert not anomalies, f"after the job has ended: {anomalies}\n{self.story()}"

    def complete(self) -> None:
        with self.run({}) as run:
            status = run.wait(PATIENCE)
        assert status == 0, f"exit {status}\n{self.story()}\n{run.tail(60)}"

    def anomalies(self) -> list[Anomaly]:
        """By a reader that knows neither ledger nor manifests."""
        sent = (Row("row", number) for number in self.config.expected)
        return find_anomalies(sent, [Row("row", number) for number in self._read(self.config)], ordered=False)

    @contextmanager
    def run(self, rules: dict[str, str]) -> Iterator[JobProcess]:
        with JobProcess(SCRIPT, [self._configured()], self.folder, environment=self._environment(rules)) as process:
            yield process

    @contextmanager
    def supervised(self, rules: dict[str, str], *options: str) -> Iterator[Supervised]:
        """With a lease, so that of several one runs the job."""
        arguments = [*OFTEN, LEASE, *options, str(SCRIPT), self._configured()]
        with Supervised(self.folder, arguments, self._environment(rules)) as process:
            yield process

    def _configured(self) -> str:
        return str(self.config.write(self.folder / "config.json"))

    def _environment(self, rules: dict[str, str]) -> dict[str, str]:
        self._once.mkdir(exist_ok=True)
        return {
            **self.machine.environment,
            failpoints.VARIABLE: ";".join(f"{name}={action}" for name, action in rules.items()),
            failpoints.ONCE: str(self._once),
        }

    def story(self) -> str:
        """Each cut, with what it has taken, for a failure's message."""
        return "\n".join(f"{point}: {cut}" for point, cut in zip(self.points, self.machine.cuts, strict=False))


def read_files(config: PowerJob) -> list[int]:
    files = [
        path
        for path in config.out.rglob("*")
        if path.is_file() and path.relative_to(config.out).parts[0][0] not in "._"
    ]
    return [int(json.loads(line)["value"]) for path in files for line in path.read_text().splitlines()]
