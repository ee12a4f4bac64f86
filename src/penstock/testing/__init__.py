"""For tests of jobs and of sinks; users may rely on everything here.

`failpoints`: places in the protocol where a test kills the job. `oracle` compares expected rows with the target's;
`anomalies` reads what was sent and what is visible, with Jepsen's list. `sink_contract` is the suite that every sink
must pass, on `sink_harness`; `simulate` runs a sink through many histories of kills and takeovers; `drill` is
`penstock drill` in a test.
"""

from typing import Any

__all__ = ["simulate"]


def __getattr__(name: str) -> Any:
    """Imported when it is used: `penstock.testing.failpoints` loads nothing of the engine."""
    if name != "simulate":
        raise AttributeError(name)
    from penstock.testing.simulation import simulate

    return simulate
