"""What one place sets (`-D`, the code, a file), understood option by option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.config.checkpoints import Checkpoints, contradiction_error
from penstock.config.load import Texts
from penstock.config.option import Option, Part
from penstock.config.registry import BY_KEY, BY_NAME, is_flinks, nearest
from penstock.config.state import StateBackend
from penstock.durations import duration_text
from penstock.errors import ConfigurationError
from penstock.secrets import mask_setting, masked

if TYPE_CHECKING:
    from penstock.config.restart_strategy import RestartStrategy

CODE, OPTIONS, DEFAULT = "code", "-D", "default"
LOG_LEVEL = "penstock.log.level"  # of Spark, so it travels with Spark's settings


@dataclass(frozen=True)
class Value:
    """One option's value, as written and as understood, and where it came from."""

    option: Option
    value: Any
    text: str
    where: str
    key: str  # as written, perhaps an older name

    @property
    def side(self) -> str:
        """How an error names it."""
        if self.where == CODE:
            return f"{self.option.python.replace('…', masked(str(self.value)).replace('-', '_'))} in the code"
        return describe_setting(self.key, self.text, self.where)


@dataclass(frozen=True)
class Level:
    """All that one place says."""

    where: str
    values: Mapping[tuple[Part, str], Value] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def get(self, part: Part, name: str) -> Value | None:
        return self.values.get((part, name))


def describe_setting(key: str, text: str, where: str) -> str:
    """`-D key=value`, `key=value from penstock.yaml`, `key=value, the default`; never a secret."""
    pair = f"{key}={mask_setting(key, text)}"
    if where == OPTIONS:
        return f"-D {pair}"
    return (
        f"{pair}, the default" if where == DEFAULT else f"{pair} {'in the code' if where == CODE else f'from {where}'}"
    )


def read_texts(texts: Texts) -> Level:
    """From a file or `-D`. A key that nobody knows is an error that suggests another spelling."""
    values: dict[tuple[Part, str], Value] = {}
    spark: dict[str, str] = {}
    ignored: list[str] = []
    for key, text in texts.values.items():
        option = BY_KEY.get(key)
        if option is not None:
            _add(values, _read_value(option, key, text, texts.where))
        elif key.startswith("spark.") or key == LOG_LEVEL:
            spark[key] = text
        elif is_flinks(key):
            ignored.append(key)
        else:
            raise _unknown(key, text, texts.where)
    return Level(texts.where, values, spark, tuple(ignored))


def read_code(
    checkpoints: Checkpoints | None,
    state_backend: StateBackend | None,
    restart: RestartStrategy | None,
    conf: Mapping[str, str],
) -> Level:
    """From the program: only what it gave, defaults are not its word."""
    from penstock.config.restart_strategy import options_of

    given: dict[tuple[Part, str], Any] = {}
    if checkpoints is not None:
        given.update({("checkpoints", name): getattr(checkpoints, name) for name in checkpoints.given})
    if state_backend is not None:
        given.update({("state", name): value for name, value in state_backend.given.items()})
    if restart is not None:
        given.update({("restart", name): value for name, value in options_of(restart).items()})
    values = {
        place: Value(BY_NAME[place], value, _text(value, BY_NAME[place]), CODE, BY_NAME[place].key)
        for place, value in given.items()
    }
    return Level(CODE, values, {key: str(value) for key, value in conf.items()})


def _text(value: Any, option: Option) -> str:
    """A value of Python's as it would stand in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return option.default
    if option.parse is duration_text and not isinstance(value, str):
        return "never" if value == float("inf") else f"{value:g} s"
    return str(value)


def _read_value(option: Option, key: str, text: str, where: str) -> Value:
    name = f"-D {key}" if where == OPTIONS else f"{where}: {key}"
    unit = " ms" if option.parse is duration_text and text.strip().isdecimal() else ""
    return Value(option, option.parse(text, name), text.strip() + unit, where, key)


def _add(values: dict[tuple[Part, str], Value], value: Value) -> None:
    place = (value.option.part, value.option.name)
    other = values.setdefault(place, value)
    if other.value != value.value:
        raise contradiction_error(other.side, value.side, f"both are names of {value.option.key}")


def _unknown(key: str, text: str, where: str) -> ConfigurationError:
    close = nearest(key)
    return ConfigurationError(
        f"{describe_setting(key, text, where)}: there is no such setting.",
        safe="nothing was started.",
        to_do=f"did you mean {close}?" if close else "see `penstock config` for all of them; Spark's begin with spark.",
    )
