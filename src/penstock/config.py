"""What a user may steer. Durations are seconds, or text such as `200ms`, `1s`, `15min`, `1h`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"^\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>b|kb|mb|gb|tb|k|m|g|t|bytes)\s*$", re.IGNORECASE)
_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
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


def size(value: int | str, name: str) -> int:
    """A number of bytes; text has a unit: `64mb`, `1gb`, in powers of 1024 as Flink and Spark count."""
    if isinstance(value, str):
        match = _SIZE.match(value)
        if match is None:
            raise ConfigurationError(
                f"{name}={value!r} is not a size.",
                safe="nothing was started.",
                to_do="write a number of bytes, or a number with kb, mb, gb or tb, for example '64mb'.",
            )
        return int(float(match["number"]) * _BYTES[match["unit"].lower()[:1]])
    if value < 0:
        raise ConfigurationError(
            f"{name}={value} is negative.", safe="nothing was started.", to_do="give a size of 0 or more."
        )
    return int(value)


class Mode(StrEnum):
    """What a job asks of the whole chain."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Retention(StrEnum):
    """What becomes of the checkpoints when a job is cancelled. A job that fails always keeps them."""

    RETAIN = "retain_on_cancellation"
    DELETE = "delete_on_cancellation"


@dataclass(frozen=True)
class Checkpoints:
    """How often epochs are cut, what they promise, and where checkpoints and the ledger live.

    `interval` 0 starts each epoch as soon as the one before is complete. `storage` is a folder: a path, a `file:` URI
    or any Hadoop file system URI; `memory:` is a temporary folder, in memory where the machine has such, that is gone
    with the process. `mode`: see `Mode`. `timeout`: an epoch that is not prepared after this is aborted, and a failed
    checkpoint. `min_pause`: at least this long from the end of one epoch to the work of the next. `max_concurrent`: how
    many epochs may be under way; above 1, the next is prepared while the one before commits. `tolerable_failures`:
    how many checkpoints in a row may fail before the job does. `unaligned`: the checkpoint does not wait for a slow
    sink, its rows go into the in-flight log; `aligned_timeout`: only once the sink has been waited for this long.
    `inflight_limit`: bytes in that log beyond which the job slows down. `retention`: what `cancel` does with the
    checkpoints; `num_retained`: how many complete ones are kept. `final_checkpoint`: whether bounded inputs end with a
    committed epoch. `commit_timeout` is how long a decided epoch's commits are tried and proven before the query
    restarts, `abort_timeout` how long aborting may take. `retained` is how many decided epochs the ledger keeps for
    looking back.
    """

    interval: float | str = 0.0
    storage: str = "penstock-checkpoints"
    mode: Mode | str = Mode.EXACTLY_ONCE
    timeout: float | str = "10min"
    min_pause: float | str = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    unaligned: bool = False
    aligned_timeout: float | str = 0.0
    inflight_limit: int | str = "1gb"
    retention: Retention | str = Retention.RETAIN
    num_retained: int = 1
    final_checkpoint: bool = True
    commit_timeout: float | str = "60s"
    abort_timeout: float | str = "30s"
    retained: int = 100
    interval_seconds: float = field(init=False, repr=False, default=0.0)
    timeout_seconds: float = field(init=False, repr=False, default=0.0)
    min_pause_seconds: float = field(init=False, repr=False, default=0.0)
    aligned_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    commit_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    abort_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    inflight_bytes: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        for name in ("interval", "timeout", "min_pause", "aligned_timeout", "commit_timeout", "abort_timeout"):
            object.__setattr__(self, f"{name}_seconds", seconds(getattr(self, name), name))
        object.__setattr__(self, "inflight_bytes", size(self.inflight_limit, "inflight_limit"))
        for name, kind in (("mode", Mode), ("retention", Retention)):
            object.__setattr__(self, name, _one_of(kind, getattr(self, name), name))
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
        if self.max_concurrent < 1 or self.num_retained < 1 or self.tolerable_failures < 0:
            raise ConfigurationError(
                f"max_concurrent={self.max_concurrent}, num_retained={self.num_retained} and"
                f" tolerable_failures={self.tolerable_failures} cannot all be meant.",
                safe="nothing was started.",
                to_do="give max_concurrent and num_retained at least 1, tolerable_failures at least 0.",
            )
        if self.unaligned and self.mode is not Mode.EXACTLY_ONCE:
            raise _contradiction("unaligned=True", f"mode={self.mode}", "unaligned checkpoints exist for exactly_once")
        if self.unaligned and self.max_concurrent > 1:
            raise _contradiction(
                "unaligned=True", f"max_concurrent={self.max_concurrent}", "an unaligned epoch waits for nobody anyway"
            )
        if self.max_concurrent > 1 and self.mode is not Mode.EXACTLY_ONCE:
            raise _contradiction(
                f"max_concurrent={self.max_concurrent}",
                f"mode={self.mode}",
                "only exactly_once has a commit to wait for",
            )
        if self.min_pause_seconds > 0 and self.max_concurrent > 1:
            raise _contradiction(
                f"min_pause={self.min_pause}", f"max_concurrent={self.max_concurrent}", "a pause allows one at a time"
            )

    @property
    def logged(self) -> bool:
        """Whether epochs need the in-flight log."""
        return self.unaligned or self.max_concurrent > 1


def _one_of(kind: type[StrEnum], value: str, name: str) -> StrEnum:
    try:
        return kind(str(value).strip().lower().replace("-", "_"))
    except ValueError:
        raise ConfigurationError(
            f"{name}={value!r} is none of {', '.join(kind)}.",
            safe="nothing was started.",
            to_do=f"choose one of {', '.join(kind)}.",
        ) from None


def _contradiction(one: str, other: str, because: str) -> ConfigurationError:
    return ConfigurationError(
        f"{one} contradicts {other}: {because}.", safe="nothing was started.", to_do="change one of the two."
    )
