"""A job with and without a shuffle on a standalone cluster, while executors, workers, master, driver and broker die.

    python -m tests.support.cluster_chaos --minutes 10 [--seed N] [--record FILE]

Rows are fed all the time. At the end everything is let run, every row must be visible once, and nothing open.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.fault_case import Case
from tests.support.kafka import open_transactions, read_committed
from tests.support.processes import JobProcess
from tests.support.proof import recorded
from tests.support.servers.broker import Broker
from tests.support.servers.spark import SparkCluster
from tests.support.verdicts import DUPLICATE, LOST, copy_anomalies, count_of
from tests.support.waiting import until

EXECUTOR_MEMORY = "512m"
CONF = {
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Executors that went away are noticed by their connection; a paused one only by its silence.
    "spark.network.timeout": "40s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
}
END_SECONDS = 240.0  # after the last kill: a driver's start, a sweep, and what has piled up

#: What dies, and how often compared with the others.
WEIGHTS = {"executor": 5, "worker": 2, "driver": 2, "broker": 1, "master": 1, "paused executor": 2, "paused worker": 1}


@dataclass
class Report:
    """What was done, and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0  # of the driver
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    open: int = 0

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.open) and self.rows > 0

    def lines(self) -> list[str]:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        return [
            f"killed or paused: {kills or 'nothing'}; starts of the driver: {self.starts}",
            f"rows {self.rows}, lost {self.lost}, doubled {self.doubled}, transactions left open {self.open}",
        ]


class Chaos:
    """One world: a broker, a cluster of two workers, one job with two queries."""

    def __init__(self, folder: Path, broker: Broker, cluster: SparkCluster, seed: int) -> None:
        self.broker, self.cluster = broker, cluster
        self.random = random.Random(seed)
        self.report = Report()
        self.case = Case(broker.servers, folder / "case", count=True, master=cluster.url, conf=CONF, restarts=1_000_000)
        self._driver: JobProcess | None = None

    def run(self, deeds: Iterator[str], pause: Callable[[], float], rows: int = 200) -> Report:
        """Do what `deeds` names, one after the other, with rows fed before and after each; then judge."""
        self._feed(rows)
        self._start_driver()
        until(self._runs, self._said, END_SECONDS)
        for deed in deeds:
            self._feed(rows)
            time.sleep(pause())
            self._do(deed)
            self._mend()
        self._feed(rows)
        return self._judge()

    def close(self) -> None:
        self.case.close()

    def _runs(self) -> bool:
        assert self._driver is not None
        assert self._driver.status is None, self._said()
        return bool(self.case.commits("count"))

    # Deeds

    def _do(self, deed: str) -> None:
        kind = deed.rpartition(" ")[2]
        if deed == "driver":
            assert self._driver is not None
            self._driver.kill()
        elif deed == "broker":
            self.broker.kill()
            self.broker.restart()
        elif deed == "master":
            self.cluster.master.kill()
            self.cluster.master.restart()
        elif kind == "executor":
            found = self.cluster.executors()
            if not found:
                return
            self._strike([self.random.choice(found)], pause=deed.startswith("paused"))
        else:
            worker = self.random.choice(self.cluster.workers)
            if deed.startswith("paused"):
                self._strike([worker.pid], pause=True)
            else:
                worker.kill()
                worker.restart()
        self.report.kills[deed] += 1

    def _strike(self, pids: Sequence[int], *, pause: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP if pause else signal.SIGKILL)
        if pause:
            time.sleep(self.random.uniform(1, 8))
            with contextlib.suppress(ProcessLookupError):
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)

    def _mend(self) -> None:
        """What a supervisor does."""
        if self._driver is not None and self._driver.status is not None:
            self._start_driver()

    def _start_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
        self._driver = self.case.start()
        self.report.starts += 1

    def _feed(self, rows: int) -> None:
        self.case.source.feed(rows)

    # The end

    def _judge(self) -> Report:
        def visible() -> bool:
            self._mend()
            return self.case.visible()

        until(visible, self._said, END_SECONDS)
        assert self._driver is not None
        self._driver.terminate()
        self._driver.wait(END_SECONDS)
        config, report = self.case.config, self.report
        assert config.copy_to is not None
        sent = self.case.source.rows
        copied = [json.loads(row.value()) for row in read_committed(self.broker.servers, config.copy_to)]
        found = copy_anomalies(sent, copied, self.case.epochs())
        report.rows = len(sent)
        report.lost, report.doubled = count_of(LOST, found), count_of(DUPLICATE, found)
        report.open = len(open_transactions(self.broker.servers, config.name))
        self.case.assert_exact()  # the other anomalies, too
        return report

    def _said(self) -> str:
        tail = self._driver.tail() if self._driver is not None else ""
        return f"all {len(self.case.source.rows)} rows to be visible\n{tail}"


@contextlib.contextmanager
def chaos(folder: Path, seed: int) -> Iterator[Chaos]:
    """A world of its own, all of which is gone at the end."""
    with contextlib.ExitStack() as opened:
        broker = opened.enter_context(Broker.start(folder / "kafka", heap="512m"))
        cluster = opened.enter_context(SparkCluster.start(folder / "spark", workers=2, memory=EXECUTOR_MEMORY))
        world = Chaos(folder, broker, cluster, seed)
        opened.callback(world.close)
        yield world


def for_minutes(minutes: float, chance: random.Random) -> Iterator[str]:
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        yield chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    given = parser.parse_args()
    sys.stdout.write(f"seed {given.seed}, {given.minutes:g} minutes\n")
    command = f"make chaos-cluster MINUTES={given.minutes:g} SEED={given.seed}"
    with (
        recorded(given.record, "a cluster of two workers", command, given.seed) as numbers,
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder,
        chaos(Path(folder), given.seed) as world,
    ):
        chance = world.random
        report = world.run(for_minutes(given.minutes, chance), lambda: chance.uniform(0.5, 6))
        numbers |= {"ok": report.ok, **asdict(report)}
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
