"""What a user may steer. Durations are seconds, or text such as `200ms`, `1s`, `15min`, `1h`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from penstock.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"^\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|s|sec|min|m|h|d)\s*$")


def seconds(value: float | str, name: str) -> float:
    """A duration in seconds; one without a unit, or negative, is a `ConfigurationError` that names the setting."""
    if isinstance(value, str):
        match = _DURATION.match(value)
        if match is None:
            raise ConfigurationError(
                f"{name}={value!r} is not a duration.",
                safe="nothing was started.",
                to_do="write a number of seconds, or a number with ms, s, min, h or d, for example '200ms'.",
            )
        return float(match["number"]) * _UNITS[match["unit"]]
    if not value >= 0:  # said this way, it refuses "not a number" too
        raise ConfigurationError(
            f"{name}={value} is negative or no number.",
            safe="nothing was started.",
            to_do="give a duration of 0 or more.",
        )
    return float(value)


@dataclass(frozen=True)
class Checkpoints:
    """How often epochs are cut, and where checkpoints and the ledger live.

    `interval` 0 starts each epoch as soon as the one before is complete. `storage` is a folder: a path, a `file:` URI
    or any Hadoop file system URI; `memory:` is a temporary folder, in memory where the machine has such, that is gone
    with the process. `timeout` is how long an epoch may be expected to take: start-up checks hold a sink's transaction
    timeout against it. `commit_timeout` is how long a decided epoch's commits are tried and proven before the query
    restarts. `retained` is how many decided epochs the ledger keeps for looking back.
    """

    interval: float | str = 0.0
    storage: str = "penstock-checkpoints"
    timeout: float | str = "10min"
    commit_timeout: float | str = "60s"
    retained: int = 100
    interval_seconds: float = field(init=False, repr=False, default=0.0)
    timeout_seconds: float = field(init=False, repr=False, default=0.0)
    commit_timeout_seconds: float = field(init=False, repr=False, default=0.0)

    def __post_init__(self) -> None:
        for name in ("interval", "timeout", "commit_timeout"):
            object.__setattr__(self, f"{name}_seconds", seconds(getattr(self, name), name))
        if self.timeout_seconds == 0 or self.commit_timeout_seconds == 0:
            raise ConfigurationError(
                "A checkpoint timeout of 0 leaves no time for any epoch.",
                safe="nothing was started.",
                to_do="give timeout and commit_timeout a positive duration.",
            )
        if self.retained < 2:
            raise ConfigurationError(
                f"retained={self.retained}, but the ledger needs the last two decisions to recover.",
                safe="nothing was started.",
                to_do="keep at least 2.",
            )
