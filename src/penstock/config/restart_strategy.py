"""`RestartStrategy`: whether, and after how long, a failed job is started again; and the options that say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.config.option import Option, Parser, number, whole, whole_or_infinite
from penstock.deadline import duration_text, seconds
from penstock.errors import ConfigurationError

_NEVER = math.inf


@dataclass(frozen=True)
class RestartStrategy:
    """Use the class methods: `none()`, `fixed_delay(...)`, `failure_rate(...)`, `exponential_delay(...)`.

    Names, defaults and ranges are Flink's. A value out of range is a `ConfigurationError`.
    """

    attempts: int | None  # restarts, with an interval: failures within it; None: without end
    initial: float
    maximum: float
    multiplier: float
    reset_after: float  # a run that lasted this long counts as recovered
    jitter: float = 0.0  # a pause is longer or shorter by at most this share of it
    interval: float | None = None  # in which failures are counted; None: over the whole life
    immediate_after: float = _NEVER  # a run that lasted this long is started again without a pause

    @classmethod
    def none(cls) -> RestartStrategy:
        """The first failure is the last."""
        return cls(0, 0.0, 0.0, 1.0, _NEVER)

    @classmethod
    def fixed_delay(cls, attempts: int = 1, delay: float | str = "1s") -> RestartStrategy:
        """At most `attempts` restarts over the job's whole life, `delay` apart."""
        wait = seconds(delay, "delay")
        _require(_whole(attempts) and attempts >= 0, f"attempts={attempts!r}", "a whole number, 0 or more")
        _require(wait < _NEVER, f"delay={delay!r}", "a pause that ends")
        return cls(attempts, wait, wait, 1.0, _NEVER)

    @classmethod
    def failure_rate(
        cls, max_failures: int = 1, interval: float | str = "1min", delay: float | str = "1s"
    ) -> RestartStrategy:
        """Without end, `delay` apart, unless more than `max_failures` failures fall within `interval`."""
        window, wait = seconds(interval, "interval"), seconds(delay, "delay")
        _require(_whole(max_failures) and max_failures > 0, f"max_failures={max_failures!r}", "a whole number above 0")
        _require(0 < window < _NEVER, f"interval={interval!r}", "longer than 0")
        _require(wait < _NEVER, f"delay={delay!r}", "a pause that ends")
        return cls(max_failures, wait, wait, 1.0, _NEVER, interval=window)

    @classmethod
    def exponential_delay(
        cls,
        initial: float | str | None = None,
        maximum: float | str = "1min",
        multiplier: float = 1.5,
        reset_after: float | str = "1h",
        jitter: float = 0.1,
        attempts: int | None = None,
        immediate_after: float | str | None = None,
    ) -> RestartStrategy:
        """Each pause `multiplier` times the one before, up to `maximum`, give or take `jitter` of it; the first is
        `initial`, one second where it is not given.

        A run that lasted `reset_after` starts pauses and count over. `attempts` is how many restarts there may be
        before that; None is without end. The restart after a run that lasted `immediate_after` comes without a pause,
        the next after one twice as long, and so on: 10 seconds, unless `initial` is given, which then holds for every
        restart.
        """
        if immediate_after is None:
            immediate_after = "10s" if initial is None else _NEVER
        at_once, initial = seconds(immediate_after, "immediate_after"), "1s" if initial is None else initial
        first, longest = seconds(initial, "initial"), seconds(maximum, "maximum")
        reset = seconds(reset_after, "reset_after")
        _require(first > 0, f"initial={initial!r}", "longer than 0")
        _require(first <= longest < _NEVER, f"maximum={maximum!r}", f"at least initial={initial!r}, and not endless")
        _require(1 < multiplier < _NEVER, f"multiplier={multiplier!r}", "above 1")
        _require(reset > 0, f"reset_after={reset_after!r}", "longer than 0")
        _require(0 <= jitter <= 1, f"jitter={jitter!r}", "between 0 and 1")
        _require(
            attempts is None or (_whole(attempts) and attempts > 0),
            f"attempts={attempts!r}",
            "a whole number above 0, or None for no end; RestartStrategy.none() is for 0",
        )
        _require(at_once > 0, f"immediate_after={immediate_after!r}", "longer than 0")
        return cls(attempts, first, longest, multiplier, reset, jitter, immediate_after=at_once)

    def describe(self) -> str:
        if self.attempts == 0:
            return "none: the first failure is the last"
        if self.interval is not None:
            return (
                f"failure-rate: {_time(self.initial)} apart, until more than {self.attempts} failures fall within"
                f" {_time(self.interval)}"
            )
        if self.reset_after == _NEVER:
            return f"fixed-delay: at most {self.attempts} restarts, {_time(self.initial)} apart"
        end = "without end" if self.attempts is None else f"at most {self.attempts} in a row"
        at_once = "" if self.immediate_after == _NEVER else f", at once after one of {_time(self.immediate_after)}"
        return (
            f"exponential-delay: {_time(self.initial)} growing by {self.multiplier:g} to {_time(self.maximum)}, {end},"
            f" starting over after a run of {_time(self.reset_after)}{at_once}"
        )

    def to_dict(self) -> dict[str, Any]:
        """For another process; `from_dict` makes it again. Fit for JSON."""
        return {name: None if value == _NEVER else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> RestartStrategy:
        """What `to_dict` gave; a `TypeError` where it is not that."""
        endless = {name: _NEVER for name in ("reset_after", "immediate_after") if body.get(name) is None}
        return cls(**{**body, **endless})


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _time(value: float) -> str:
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if value >= length and value % length == 0:
            return f"{value / length:g} {unit}"
    return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"


def _require(true: bool, argument: str, needed: str) -> None:
    if not true:
        raise ConfigurationError(f"{argument} is out of range for a restart strategy.", to_do=f"give {needed}.")


NONE, FIXED, RATE, EXPONENTIAL = "none", "fixed-delay", "failure-rate", "exponential-delay"
_WORDS = {
    "none": NONE, "off": NONE, "disable": NONE,
    "fixed-delay": FIXED, "fixeddelay": FIXED,
    "failure-rate": RATE, "failurerate": RATE,
    "exponential-delay": EXPONENTIAL, "exponentialdelay": EXPONENTIAL,
}  # fmt: skip


def _type(text: str, name: str) -> str:
    word = _WORDS.get(text.strip().lower().replace("_", "-"))
    if word is None:
        kinds = ", ".join(sorted(set(_WORDS.values())))
        raise ConfigurationError(f"{name}={text!r} is none of {kinds}.", to_do="choose one of these.")
    return word


def _option(strategy: str, key: str, name: str, default: str, parse: Parser, meaning: str) -> Option:
    python = f"RestartStrategy.{strategy.replace('-', '_')}({name}=…)"
    key, name = f"restart-strategy.{strategy}.{key}", f"{strategy}.{name}"  # two strategies have a `delay`
    return Option(key, "restart", name, python, default, parse, meaning)


RESTART_OPTIONS = (
    Option("restart-strategy.type", "restart", "type", "Job(restart=RestartStrategy.…)", EXPONENTIAL, _type,
        "`none` (also `off`, `disable`), `fixed-delay`, `failure-rate` or `exponential-delay`. What no restart can"
        " cure is never retried, whatever is set here.",
        ("restart-strategy",)),
    _option(FIXED, "attempts", "attempts", "1", whole, "The maximum number of restarts."),
    _option(FIXED, "delay", "delay", "1 s", duration_text, "The pause before each."),
    _option(RATE, "max-failures-per-interval", "max_failures", "1", whole,
        "The maximum number of failures within the interval; one more ends the job."),
    _option(RATE, "failure-rate-interval", "interval", "1 min", duration_text,
        "The interval in which failures are counted."),
    _option(RATE, "delay", "delay", "1 s", duration_text, "The pause before each restart."),
    _option(EXPONENTIAL, "initial-backoff", "initial", "1 s", duration_text, "The first pause."),
    _option(EXPONENTIAL, "max-backoff", "maximum", "1 min", duration_text, "The longest pause."),
    _option(EXPONENTIAL, "backoff-multiplier", "multiplier", "1.5", number,
        "The factor from one pause to the next."),
    _option(EXPONENTIAL, "reset-backoff-threshold", "reset_after", "1 h", duration_text,
        "A run of at least this length resets pause and count."),
    _option(EXPONENTIAL, "jitter-factor", "jitter", "0.1", number,
        "The share of a pause by which it varies at random."),
    _option(EXPONENTIAL, "attempts-before-reset-backoff", "attempts", "infinite", whole_or_infinite,
        "The maximum number of restarts before a run is long enough to reset the count."),
    Option("penstock.restart.immediate-after", "restart", f"{EXPONENTIAL}.immediate_after",
        "RestartStrategy.exponential_delay(immediate_after=…)", "10 s", duration_text,
        "The restart after a run that lasted this long comes without a pause; the next after one twice as long, and so"
        " on. Where `initial-backoff` is set, only if this is set as well. Flink always waits."),
)  # fmt: skip


def build_strategy(kind: str, values: Mapping[str, Any]) -> RestartStrategy:
    """The strategy that the options describe, by their names in the registry; other strategies' are left out."""
    mine = {name.removeprefix(f"{kind}."): value for name, value in values.items() if name.startswith(f"{kind}.")}
    strategy: RestartStrategy = getattr(RestartStrategy, kind.replace("-", "_"))(**mine)
    return strategy


def options_of(strategy: RestartStrategy) -> dict[str, Any]:
    if strategy.attempts == 0:
        return {"type": NONE}
    if strategy.interval is not None:
        parts = {"max_failures": strategy.attempts, "interval": strategy.interval, "delay": strategy.initial}
        return {"type": RATE, **{f"{RATE}.{name}": value for name, value in parts.items()}}
    if strategy.reset_after == _NEVER:
        return {"type": FIXED, f"{FIXED}.attempts": strategy.attempts, f"{FIXED}.delay": strategy.initial}
    names = ("initial", "maximum", "multiplier", "reset_after", "jitter", "attempts", "immediate_after")
    return {"type": EXPONENTIAL, **{f"{EXPONENTIAL}.{name}": getattr(strategy, name) for name in names}}
