"""The failpoints that a query of `format("penstock")` passes, for the suites that kill it: in classic Spark, behind a
Connect server and in a pipeline."""

from __future__ import annotations

from penstock.failpoints import POINTS

#: Not passed: Spark's log is never completed by this way, and there is no in-flight log.
_ELSEWHERE = ("recover.finished", "inflight.", "drain.", "task.logged")
ALL = [name for name, where in POINTS.items() if where in ("driver", "worker") and not name.startswith(_ELSEWHERE)]
FAILS = "epoch.precommitted"  # raises: only an epoch that fails before its decision is aborted by its own commit
#: For a kill of the whole driver while a worker hangs there. What only follows a failure or a kill is not among them.
KILLED = [name for name in ALL if name not in ("epoch.aborted", FAILS)]


AFTER_A_DECISION = "recover.committed"  # passed where the epoch before it died decided


def parts_of(points: list[str], size: int = 3) -> list[list[str]]:
    """A process is started for each point: in parts, so that one test ends in time."""
    return [points[at : at + size] for at in range(0, len(points), size)]


def before(point: str) -> list[str]:
    """The points at which something has to die, so that a next start passes this one."""
    return ["epoch.decided"] if point == AFTER_A_DECISION else []
