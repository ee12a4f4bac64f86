"""`format("penstock")` from Kafka to Kafka: its Python workers, and the whole driver, die at every point, and each row
is visible once. Without Spark, with every way to go on: `tests/unit/engine/test_relay.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import fault_case
from tests.support.fault_case import Case
from tests.support.format_points import ALL, FAILS, KILLED
from tests.support.jobs import stream_format
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.processes import JobProcess
    from tests.support.servers.broker import Broker


@pytest.fixture
def world(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(fault_case, "SCRIPT", Path(stream_format.__file__))
    made = Case(broker.servers, tmp_path / "case", restarts=3 * len(ALL))
    yield made
    made.close()


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(
            ["task.prepared", "epoch.decided", "recover.committed", "commit.first"], id="usual", marks=pytest.mark.long
        ),
        pytest.param([name for name in ALL if name != FAILS], id="all", marks=pytest.mark.long),
    ],
)
def test_workers_killed_at_every_point(world: Case, points: Sequence[str]) -> None:
    """SIGKILL to the one Python process that passes the point; Spark calls abort, and the query is started again."""
    run = world.start({**dict.fromkeys(points, "crash"), FAILS: "raise"})
    while not all(map(world.acted, points)):
        world.source.feed(100)
        world.wait_visible(run, 120)
    verdict(world, run)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(["epoch.decided"], id="usual"),
        pytest.param(KILLED, id="all", marks=pytest.mark.long),
    ],
)
def test_drivers_killed_at_every_point(world: Case, points: Sequence[str]) -> None:
    """SIGKILL to the driver with its JVM and all workers, while one of them hangs at the point."""
    for point in points:
        run = world.start({point: "hang"})
        world.source.feed(100)
        passed = until(
            lambda: world.acted(point) or world.visible(),  # noqa: B023
            lambda: f"{point} to be passed\n{run.tail()}",  # noqa: B023
            120,
        )
        assert passed
        run.kill()
    run = world.start()
    world.source.feed(100)
    world.wait_visible(run, 120)
    assert world.acted("epoch.decided")
    verdict(world, run)


def verdict(world: Case, run: JobProcess) -> None:
    run.kill()
    world.assert_exact()
