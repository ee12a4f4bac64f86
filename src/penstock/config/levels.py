"""What one place sets (`-D`, the code, a file): read as text, then understood option by option.

Flink's other keys are ignored by their families, so that a Flink configuration file works unchanged; a key that is
almost one of ours is taken for a misspelt one.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config.checkpoints import CHECKPOINT_OPTIONS, Checkpoints, contradiction_error
from penstock.config.operations import AVAILABILITY_OPTIONS, LOG_OPTIONS, RECOVERY_OPTIONS, REST_OPTIONS
from penstock.config.option import Option, Part
from penstock.config.restart_strategy import RESTART_OPTIONS, RestartStrategy, options_of
from penstock.config.state import STATE_OPTIONS, StateBackend
from penstock.deadline import duration_text
from penstock.errors import ConfigurationError
from penstock.secrets import mask_setting, masked

ALL: tuple[Option, ...] = (
    *CHECKPOINT_OPTIONS, *STATE_OPTIONS, *RESTART_OPTIONS, *RECOVERY_OPTIONS, *AVAILABILITY_OPTIONS, *REST_OPTIONS,
    *LOG_OPTIONS,
)  # fmt: skip
BY_KEY = {key: option for option in ALL for key in (option.key, *option.aliases)}
BY_NAME = {(option.part, option.name): option for option in ALL}

FILE_VARIABLE = "PENSTOCK_CONFIG"  # path of the configuration file
DEFAULT_FILE = "penstock.yaml"  # without the variable, in the working directory
OPTIONS_VARIABLE = "PENSTOCK_OPTIONS"  # what `-D` gave to the process, as a JSON object


@dataclass(frozen=True)
class Texts:
    where: str  # the place, as an error names it
    values: Mapping[str, str]


_in_use: tuple[Texts, Texts] | None = None


@contextmanager
def using(options: Texts, file: Texts) -> Iterator[None]:
    """While the block lasts, these are what `from_options` and `from_file` return."""
    global _in_use
    before, _in_use = _in_use, (options, file)
    try:
        yield
    finally:
        _in_use = before


def from_options() -> Texts:
    if _in_use is not None:
        return _in_use[0]
    text = os.environ.get(OPTIONS_VARIABLE, "")
    if not text.strip():
        return Texts("-D", {})
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ConfigurationError(
            f"{OPTIONS_VARIABLE} is not a JSON object.",
            to_do='give options by `penstock run -D key=value`, or write the variable as {"key": "value"}.',
        )
    return Texts("-D", {str(key): _plain_text(value) for key, value in body.items()})


def from_file() -> Texts:
    if _in_use is not None:
        return _in_use[1]
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named or DEFAULT_FILE)
    if not named and not path.is_file():
        return Texts(DEFAULT_FILE, {})
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The configuration file {path} cannot be read: {error}.", to_do=f"correct {FILE_VARIABLE}, or the file."
        ) from error
    return Texts(str(path), parse(text, str(path)))


def parse(text: str, where: str) -> dict[str, str]:
    """Nested YAML, dotted keys, or both."""
    import yaml

    try:
        tree = yaml.compose(text, Loader=yaml.BaseLoader)
    except RecursionError:
        happened = f"{where} nests too deeply to be settings."
        raise ConfigurationError(happened, to_do="write `key: value` lines.") from None
    except yaml.YAMLError as error:
        # The parser's words quote the line, and there may be a password in it; so would a traceback with its error.
        problem = str(getattr(error, "problem", None) or type(error).__name__)
        if (place := getattr(error, "problem_mark", None)) is not None:
            problem = f"{problem} in line {place.line + 1}, column {place.column + 1}"
        raise ConfigurationError(
            f"{where} is not YAML: {problem}.", to_do="correct the file; each line is `key: value`."
        ) from None
    settings: dict[str, str] = {}
    if tree is not None:
        if tree.id != "mapping":
            happened = f"{where} holds no settings but a {tree.id}."
            raise ConfigurationError(happened, to_do="write `key: value` lines.")
        _collect(tree, "", settings, where)
    return settings


def _collect(mapping: Any, prefix: str, into: dict[str, str], where: str) -> None:
    """By dotted keys. Every value is text: `off`, `1e3` and `0:30` mean what the option says, not what YAML guesses."""
    lines: dict[str, int] = {}
    for key, value in mapping.value:
        name, line = str(key.value), key.start_mark.line + 1
        if lines.setdefault(name, line) != line:
            raise ConfigurationError(
                f"{where} has {name} in line {lines[name]} and again in line {line}.", to_do="keep one of the two."
            )
        if value.id == "mapping":
            _collect(value, f"{prefix}{name}.", into, where)
        elif value.value not in ("", "null", "~"):  # a key without a value says nothing
            text = ";".join(str(item.value) for item in value.value) if value.id == "sequence" else value.value
            if into.setdefault(f"{prefix}{name}", text) != text:
                happened = f"{where} has {prefix}{name} twice, nested and dotted."
                raise ConfigurationError(happened, to_do="keep one of the two.")


def _plain_text(value: Any) -> str:
    if isinstance(value, list):
        return ";".join(_plain_text(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


CODE, OPTIONS, DEFAULT = "code", "-D", "default"
LOG_LEVEL = "penstock.log.level"  # of Spark, so it travels with Spark's settings


@dataclass(frozen=True)
class Value:
    option: Option
    value: Any
    text: str  # as written
    where: str
    key: str  # as written, perhaps an older name

    @property
    def side(self) -> str:
        if self.where == CODE:
            return f"{self.option.python.replace('…', masked(str(self.value)).replace('-', '_'))} in the code"
        return describe_setting(self.key, self.text, self.where)


@dataclass(frozen=True)
class Level:
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
    if where == DEFAULT:
        return f"{pair}, the default"
    return f"{pair} in the code" if where == CODE else f"{pair} from {where}"


def read_texts(texts: Texts) -> Level:
    values: dict[tuple[Part, str], Value] = {}
    spark: dict[str, str] = {}
    ignored: list[str] = []
    for key, text in texts.values.items():
        if (option := BY_KEY.get(key)) is not None:
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
    """Only what the program gave: defaults are not its word."""
    arguments: dict[Part, Mapping[str, Any]] = {
        "checkpoints": {name: getattr(checkpoints, name) for name in checkpoints.given} if checkpoints else {},
        "state": state_backend.given if state_backend else {},
        "restart": options_of(restart) if restart else {},
    }
    values = {}
    for part, name, value in ((part, *pair) for part, given in arguments.items() for pair in given.items()):
        option = BY_NAME[part, name]
        values[part, name] = Value(option, value, _text(value, option), CODE, option.key)
    return Level(CODE, values, {key: str(value) for key, value in conf.items()})


def _text(value: Any, option: Option) -> str:
    """A value of Python's as one would write it in a file."""
    if value is None:
        return option.default
    if option.parse is duration_text and not isinstance(value, str):
        return "never" if value == float("inf") else f"{value:g} s"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        to_do=f"did you mean {close}?" if close else "see `penstock config` for all of them; Spark's begin with spark.",
    )


def nearest(key: str) -> str | None:
    return next(iter(difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.6)), None)


_FLINK = frozenset({
    "akka", "application-result-store", "blob", "cep", "classloader", "cleanup-strategy", "client", "cluster",
    "compiler", "completed-application-store", "containerized", "env", "events", "execution", "external-resource",
    "external-resources", "flink", "fs", "hadoop", "heartbeat", "high-availability", "historyserver", "io",
    "java", "jmx", "job-event", "job-result-store", "jobmanager", "jobstore", "kubernetes", "local",
    "materialized-table", "mdc", "metrics", "minicluster", "optimizer", "pekko", "pipeline", "plugin", "process",
    "python", "query", "queryable-state", "resourcemanager", "rest", "s3", "s3a", "scheduler-mode", "security",
    "shuffle-service-factory", "sink", "slot", "slotmanager", "slow-task-detector", "sql-client", "sql-gateway",
    "state", "table", "task", "taskmanager", "traces", "user", "web", "yarn", "zookeeper",
})  # fmt: skip
_TYPING_ERROR = 3  # letters by which a misspelt key differs from one of ours; no two keys of Flink are so close


def is_flinks(key: str) -> bool:
    """Whether it is a key of Flink that Penstock ignores: one of Flink's families, and no misspelt key of ours."""
    return key.partition(".")[0] in _FLINK and not any(_is_misspelt(key, ours) for ours in BY_KEY)


def _is_misspelt(key: str, ours: str) -> bool:
    if ours.startswith(key) and ours[len(key) :][:1] != ".":
        return True
    same = sum(block.size for block in difflib.SequenceMatcher(None, key, ours).get_matching_blocks())
    return len(key) + len(ours) - 2 * same <= _TYPING_ERROR
