"""A short run of what `make chaos-cluster` does for long."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster_chaos import chaos

DEEDS = ("executor", "worker", "driver", "broker")


def test_nothing_is_lost_or_doubled_while_a_cluster_dies_in_parts(tmp_path: Path) -> None:
    """Copy and count, without and with a shuffle, on two workers. Each kind of process is killed once."""
    with chaos(tmp_path, seed=1) as world:
        report = world.run(iter(DEEDS), pause=lambda: 0.5)
    assert dict(report.kills) == dict.fromkeys(DEEDS, 1)
    assert report.ok, report.lines()
