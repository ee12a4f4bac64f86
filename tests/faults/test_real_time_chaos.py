"""A short run of what `make chaos-real-time` does for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.supply.versions import installed_version
from tests.support.real_time_chaos import Fault, Round, torment, world

pytestmark = pytest.mark.skipif(installed_version().minor < (4, 2), reason="real-time mode is new in Spark 4.2")

#: The last strikes while the job still recovers from the one before.
FAULTS = (
    Fault("network stalled", seconds=1.5),
    Fault("driver paused, replaced, woken", choice=0.1),
    Fault("answers lost"),
    Fault("broker killed"),
    Fault("lane fenced by a stranger", hasty=1.0, choice=0.6),
)


def test_rows_stay_exact_while_driver_broker_and_network_fail(tmp_path: Path) -> None:
    """A plan in which marks lie within source rows, and one that gives other values in a replay."""
    with world(tmp_path) as around:
        report = torment(around, iter([Round(("exploding", "random"), "10 minutes", FAULTS)]))
    assert report.ok, "\n".join(report.lines())
    assert report.faults.total() == len(FAULTS)
