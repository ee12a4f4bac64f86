"""`Checkpoints`: how often epochs are cut, what they promise, where they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from penstock.config.values import one_of, schemes, size
from penstock.durations import seconds
from penstock.errors import ConfigurationError


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
    looking back. `savepoint_dir` is where savepoints go for which no folder is named. `trusted_schemes`: storage that
    is used on your word that of two creates of one name only one succeeds.

    What is given here wins over a configuration file; what is not given may be set there, and `-D` wins over both.
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
    savepoint_dir: str | None = None
    trusted_schemes: Sequence[str] = ()
    interval_seconds: float = field(init=False, repr=False, default=0.0)
    timeout_seconds: float = field(init=False, repr=False, default=0.0)
    min_pause_seconds: float = field(init=False, repr=False, default=0.0)
    aligned_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    commit_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    abort_timeout_seconds: float = field(init=False, repr=False, default=0.0)
    inflight_bytes: int = field(init=False, repr=False, default=0)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Remembers which arguments were written down: only those win over a file."""
        made = super().__new__(cls)
        object.__setattr__(made, "_given", (*_NAMES[: len(values)], *named))
        return made

    def __post_init__(self) -> None:
        for name in ("interval", "timeout", "min_pause", "aligned_timeout", "commit_timeout", "abort_timeout"):
            object.__setattr__(self, f"{name}_seconds", seconds(getattr(self, name), name))
        object.__setattr__(self, "inflight_bytes", size(self.inflight_limit, "inflight_limit"))
        object.__setattr__(self, "mode", one_of(Mode, self.mode, "mode"))
        object.__setattr__(self, "retention", one_of(Retention, self.retention, "retention"))
        object.__setattr__(self, "trusted_schemes", schemes(self.trusted_schemes, "trusted_schemes"))
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
        found = contradiction(vars(self))
        if found is not None:
            one, other, because = found
            raise contradicts(f"{one}={getattr(self, one)}", f"{other}={getattr(self, other)}", because)

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments that were written down, defaults left out."""
        names: tuple[str, ...] = self.__dict__["_given"]
        return names

    def but(self, **changes: Any) -> Checkpoints:
        """The same with some values changed; unlike `dataclasses.replace`, what was not given stays so."""
        return Checkpoints(**{**{name: getattr(self, name) for name in self.given}, **changes})

    @property
    def logged(self) -> bool:
        """Whether epochs need the in-flight log."""
        return self.unaligned or self.max_concurrent > 1


_NAMES = tuple(one.name for one in fields(Checkpoints) if one.init)


def contradiction(values: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Two names out of these values that cannot both be meant, and why."""
    exactly_once = values["mode"] == Mode.EXACTLY_ONCE
    if values["unaligned"] and not exactly_once:
        return "unaligned", "mode", "unaligned checkpoints exist for exactly_once"
    if values["unaligned"] and values["max_concurrent"] > 1:
        return "unaligned", "max_concurrent", "an unaligned epoch waits for nobody anyway"
    if values["max_concurrent"] > 1 and not exactly_once:
        return "max_concurrent", "mode", "only exactly_once has a commit to wait for"
    if seconds(values["min_pause"], "min_pause") > 0 and values["max_concurrent"] > 1:
        return "min_pause", "max_concurrent", "a pause allows one at a time"
    return None


def contradicts(one: str, other: str, because: str) -> ConfigurationError:
    """The error that names both sides."""
    return ConfigurationError(
        f"{one} contradicts {other}: {because}.", safe="nothing was started.", to_do="change one of the two."
    )
