"""The options of restart strategies."""

from __future__ import annotations

from penstock.config.option import Option, Parser
from penstock.config.values import number, whole, whole_or_infinite
from penstock.durations import duration_text
from penstock.errors import ConfigurationError

_UNIT = "tests/unit/config/test_restart.py::"

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
        raise ConfigurationError(
            f"{name}={text!r} is none of {', '.join(sorted(set(_WORDS.values())))}.",
            safe="nothing was started.",
            to_do="choose one of these.",
        )
    return word


def _option(strategy: str, key: str, name: str, default: str, parse: Parser, meaning: str, shown_by: str) -> Option:
    python = f"RestartStrategy.{strategy.replace('-', '_')}({name}=…)"
    # The name alone would not do: two strategies have a `delay`.
    return Option(
        f"restart-strategy.{strategy}.{key}", "restart", f"{strategy}.{name}", python, default, parse, meaning,
        (f"{_UNIT}{shown_by}",),
    )  # fmt: skip


RESTART_OPTIONS = (
    Option(
        "restart-strategy.type", "restart", "type", "Job(restart=RestartStrategy.…)", EXPONENTIAL, _type,
        "`none` (also `off`, `disable`), `fixed-delay`, `failure-rate` or `exponential-delay`. What no restart can"
        " cure is never retried, whatever stands here.",
        (f"{_UNIT}test_none", f"{_UNIT}test_what_no_retry_can_cure_is_not_retried"),
        ("restart-strategy",),
    ),
    _option(FIXED, "attempts", "attempts", "1", whole, "How many restarts there may be in all.", "test_fixed_delay"),
    _option(FIXED, "delay", "delay", "1 s", duration_text, "The pause before each.", "test_fixed_delay"),
    _option(
        RATE, "max-failures-per-interval", "max_failures", "1", whole,
        "How many failures there may be within the interval; one more ends the job.", "test_failure_rate",
    ),
    _option(
        RATE, "failure-rate-interval", "interval", "1 min", duration_text,
        "The interval in which failures are counted.", "test_failure_rate",
    ),
    _option(RATE, "delay", "delay", "1 s", duration_text, "The pause before each restart.", "test_failure_rate"),
    _option(
        EXPONENTIAL, "initial-backoff", "initial", "1 s", duration_text, "The first pause.", "test_exponential_delay",
    ),
    _option(
        EXPONENTIAL, "max-backoff", "maximum", "1 min", duration_text, "The longest pause.", "test_exponential_delay",
    ),
    _option(
        EXPONENTIAL, "backoff-multiplier", "multiplier", "1.5", number,
        "Each pause is this many times the one before.", "test_exponential_delay",
    ),
    _option(
        EXPONENTIAL, "reset-backoff-threshold", "reset_after", "1 h", duration_text,
        "A run that lasted this long starts pauses and count over.", "test_a_run_that_lasted_starts_the_count_over",
    ),
    _option(
        EXPONENTIAL, "jitter-factor", "jitter", "0.1", number,
        "The share by which a pause is made longer or shorter at random.", "test_jitter",
    ),
    _option(
        EXPONENTIAL, "attempts-before-reset-backoff", "attempts", "infinite", whole_or_infinite,
        "How many restarts there may be before a run lasts long enough to start over.",
        "test_exponential_delay_gives_up",
    ),
)  # fmt: skip
