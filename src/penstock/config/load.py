"""Settings as they were written down: in a file, by `-D`. Nothing is understood here yet; every value is text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

FILE_VARIABLE = "PENSTOCK_CONFIG"
"""Path of the configuration file; without it `penstock.yaml` in the working directory, if there is one."""

OPTIONS_VARIABLE = "PENSTOCK_OPTIONS"
"""What `-D` gave to the process, as a JSON object."""

DEFAULT_FILE = "penstock.yaml"

_FLAT_LINE = re.compile(r"^(?P<key>[^\s:#][^\s:]*): +(?P<value>.*?)\s*$")


@dataclass(frozen=True)
class Texts:
    """Keys and texts from one place, and that place as an error names it."""

    where: str
    values: Mapping[str, str]


def from_options(environment: Mapping[str, str] | None = None) -> Texts:
    """What `-D` gave."""
    text = (os.environ if environment is None else environment).get(OPTIONS_VARIABLE, "")
    if not text.strip():
        return Texts("-D", {})
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ConfigurationError(
            f"{OPTIONS_VARIABLE} is not a JSON object.",
            safe="nothing was started.",
            to_do='give options by `penstock run -D key=value`, or write the variable as {"key": "value"}.',
        )
    return Texts("-D", {str(key): _text(value) for key, value in body.items()})


def from_file(environment: Mapping[str, str] | None = None) -> Texts:
    """The file that `PENSTOCK_CONFIG` names, or `penstock.yaml` here, or nothing."""
    named = (os.environ if environment is None else environment).get(FILE_VARIABLE)
    path = Path(named or DEFAULT_FILE)
    if not named and not path.is_file():
        return Texts(DEFAULT_FILE, {})
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The configuration file {path} cannot be read: {error}.",
            safe="nothing was started.",
            to_do=f"correct {FILE_VARIABLE}, or the file.",
        ) from error
    return Texts(str(path), parse(text, str(path)))


def parse(text: str, where: str) -> dict[str, str]:
    """Nested YAML, dotted keys, or both; also the flat `key: value` lines of older Flinks, which need not be YAML."""
    import yaml

    try:
        tree = yaml.compose(text, Loader=yaml.BaseLoader)
    except RecursionError:
        raise _too_deep(where) from None
    except yaml.YAMLError as error:
        flat = _flat(text)
        if flat is not None:
            return flat
        # The parser's words quote the line, and there may be a password in it; so would a traceback with its error.
        raise ConfigurationError(
            f"{where} is not YAML: {_fault(error)}.",
            safe="nothing was started.",
            to_do="correct the file; each line is `key: value`.",
        ) from None
    body = {} if tree is None else _plain(tree, where)
    if not isinstance(body, dict):
        raise ConfigurationError(
            f"{where} holds no settings but {type(body).__name__}.",
            safe="nothing was started.",
            to_do="write `key: value` lines.",
        )
    flattened: dict[str, str] = {}
    _flatten(body, "", flattened, where)
    return flattened


def _too_deep(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} nests too deeply to be settings.",
        safe="nothing was started.",
        to_do="write `key: value` lines.",
    )


def _fault(error: Exception) -> str:
    place = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or type(error).__name__)
    return problem if place is None else f"{problem} in line {place.line + 1}, column {place.column + 1}"


def _plain(node: Any, where: str) -> Any:
    """A YAML tree in which every scalar is text: `off`, `1e3` and `0:30` mean what the option says, not what YAML
    guesses. A key written twice is an error."""
    if isinstance(node.value, str):
        return node.value
    if node.id == "sequence":
        return [_plain(item, where) for item in node.value]
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if lines.setdefault(name, line) != line:
            raise ConfigurationError(
                f"{where} has {name} in line {lines[name]} and again in line {line}.",
                safe="nothing was started.",
                to_do="keep one of the two.",
            )
        found[name] = _plain(value, where)
    return found


def _flatten(body: Mapping[Any, Any], prefix: str, into: dict[str, str], where: str) -> None:
    for name, value in body.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            _flatten(value, f"{key}.", into, where)
        elif value not in ("", "null", "~"):  # a key without a value says nothing
            text = _text(value)
            if into.setdefault(key, text) != text:
                raise ConfigurationError(
                    f"{where} has {key} twice, nested and dotted.",
                    safe="nothing was started.",
                    to_do="keep one of the two.",
                )


def _flat(text: str) -> dict[str, str] | None:
    """Flink's old format: a key, a colon, a space, whatever follows; of two lines with one key the last counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        content = line.split("#", 1)[0].rstrip()
        if not content:
            continue
        match = _FLAT_LINE.match(content)
        if match is None:
            return None
        found[match["key"]] = match["value"]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ";".join(_text(item) for item in value)
    return str(value)
