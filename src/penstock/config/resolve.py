"""One answer out of `-D`, code, file and defaults, in that order, and where each value came from."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock.config import levels
from penstock.config.checkpoints import Checkpoints, contradiction_error, find_contradiction
from penstock.config.levels import ALL, BY_NAME, CODE, DEFAULT, OPTIONS, Level, Value
from penstock.config.operations import Availability, Log, Recovery, Rest
from penstock.config.option import Option, Part
from penstock.config.restart_strategy import RestartStrategy, build_strategy
from penstock.config.state import PARTITIONS, PROVIDER, StateBackend, backend_of
from penstock.errors import ConfigurationError
from penstock.secrets import mask_setting

log = logging.getLogger("penstock")

_MEMORY = "memory:"
_KIND: tuple[Part, str] = ("checkpoints", "storage_kind")
_FOLDER: tuple[Part, str] = ("checkpoints", "storage")
_logged: set[str] = set()  # a program that makes many jobs logs each once

Values = dict[tuple[Part, str], Value]


@dataclass(frozen=True)
class SparkSetting:
    """A Spark setting that follows from an option. `side` names the option where it is set; without one it is a
    default, which gives way to Spark's own settings."""

    value: str
    side: str | None

    def agrees(self, key: str, other: str, where: str) -> bool:
        """Whether Spark's own setting is the same. If not, and the option is set: an error that names both."""
        if _plain(other) == _plain(self.value):
            return True
        if self.side is not None:
            raise contradiction_error(
                self.side, levels.describe_setting(key, other, where), f"it means {key}={self.value}"
            )
        return False


@dataclass(frozen=True)
class Settings:
    checkpoints: Checkpoints
    state_backend: StateBackend | None  # None: Spark's own setting names it
    restart: RestartStrategy
    recovery: Recovery
    availability: Availability
    rest: Rest
    log: Log
    spark: Mapping[str, str]  # from `-D` and the code: wins over all other settings of Spark
    spark_file: Mapping[str, str]  # from the file: gives way to spark-submit
    spark_origin: Mapping[str, str]
    derived_spark: Mapping[str, SparkSetting]
    values: Sequence[Value]
    ignored: Sequence[tuple[str, str]]  # Flink's keys, and the place that sets each

    @property
    def state_request(self) -> dict[str, Any]:
        """`partitions` and `backend`, each only where it is set, by our name or Spark's."""
        known = {**self.spark_file, **self.spark}
        known |= {key: setting.value for key, setting in self.derived_spark.items() if setting.side is not None}
        request: dict[str, Any] = {}
        if PARTITIONS in known:
            request["partitions"] = int(known[PARTITIONS])
        if PROVIDER in known:
            request["backend"] = backend_of(known)
        return request

    def rows(self) -> list[dict[str, str]]:
        """Every option, its value, where it came from. Secrets are not shown."""
        rows = [(setting.option.key, setting.text, setting.where) for setting in self.values]
        rows += [(key, value, self.spark_origin[key]) for key, value in {**self.spark_file, **self.spark}.items()]
        rows += [(key, "", f"{where}, ignored") for key, where in self.ignored]
        return [{"key": key, "value": mask_setting(key, text), "from": where} for key, text, where in rows]


def resolve(
    checkpoints: Checkpoints | None = None,
    state_backend: StateBackend | None = None,
    restart: RestartStrategy | None = None,
    conf: Mapping[str, str] | None = None,
) -> Settings:
    """Raises a `ConfigurationError` for what is unknown, unreadable or contradictory, which names both sides and their
    places. Logs, once, the keys that are ignored."""
    options, file = levels.read_texts(levels.from_options()), levels.read_texts(levels.from_file())
    code = levels.read_code(checkpoints, state_backend, restart, conf or {})
    given = (options, code, file)
    values: Values = {(option.part, option.name): _value(given, option) for option in ALL}
    values.update(_storage(given))
    origin = {key: level.where for level in (file, code, options) for key in level.spark}
    spark = {**code.spark, **options.spark}
    spark_file = {key: value for key, value in file.spark.items() if key not in spark}
    everything = {**spark_file, **spark}
    backend: StateBackend | None = None
    if values["state", "kind"].where == DEFAULT and PROVIDER in everything:
        kind, name = BY_NAME["state", "kind"], backend_of(everything)
        values["state", "kind"] = Value(kind, name, name, f"{origin[PROVIDER]}, by {PROVIDER}", kind.key)
    else:
        backend = _backend(values)
    settings = Settings(
        checkpoints=_checkpoints(values),
        state_backend=backend,
        restart=_restart(values, restart),
        recovery=_recovery(values),
        availability=Availability(**_arguments(_of(values, "availability"))),
        rest=Rest(**_arguments(_of(values, "rest"))),
        log=Log(**_arguments(_of(values, "log"))),
        spark=spark,
        spark_file=spark_file,
        spark_origin=origin,
        derived_spark=_spark_settings(values, backend, everything, origin),
        values=tuple(values.values()),
        ignored=[(key, level.where) for level in (options, file) for key in level.ignored],
    )
    if new := [key for key, _ in settings.ignored if key not in _logged]:
        log.warning("ignored settings of Flink: %s", ", ".join(new))
    _logged.update(new)
    return settings


def _value(levels: Sequence[Level], option: Option) -> Value:
    for level in levels:
        if (setting := level.get(option.part, option.name)) is not None:
            return setting
    parsed = option.parse(option.default, option.key) if option.default else None
    return Value(option, parsed, option.default, DEFAULT, option.key)


def _storage(levels: Sequence[Level]) -> Values:
    """Flink says "in memory" and "which folder" by two keys, Python by one. The highest place that says either decides;
    one place that says both must mean the same."""
    kinds, folders = BY_NAME[_KIND], BY_NAME[_FOLDER]
    speaking = [level for level in levels if level.get(*_KIND) is not None or level.get(*_FOLDER) is not None]
    if not speaking:
        return {}
    where, kind, folder = speaking[0].where, speaking[0].get(*_KIND), speaking[0].get(*_FOLDER)
    if kind is not None and folder is not None and _in_memory(folder) != (kind.value == "jobmanager"):
        raise contradiction_error(kind.side, folder.side, "memory is not a folder")
    if folder is None and kind is not None and kind.value == "jobmanager":
        folder = Value(folders, _MEMORY, _MEMORY, where, kind.key)
    elif folder is None:  # on a file system, in the folder that a lower place names
        lower = (level.get(*_FOLDER) for level in speaking[1:])
        default = Value(folders, folders.default, folders.default, DEFAULT, folders.key)
        folder = next((setting for setting in lower if setting is not None and not _in_memory(setting)), default)
    if kind is None:
        text = "jobmanager" if _in_memory(folder) else "filesystem"
        kind = Value(kinds, text, text, where, folder.key)
    return {_KIND: kind, _FOLDER: folder}


def _in_memory(folder: Value) -> bool:
    return str(folder.value).startswith(_MEMORY)


def _of(values: Values, part: Part) -> dict[str, Value]:
    return {name: setting for (place, name), setting in values.items() if place == part}


def _arguments(settings: Mapping[str, Value], *, explicit: bool = False) -> dict[str, Any]:
    """`explicit`: without defaults."""
    return {name: item.value for name, item in settings.items() if not explicit or item.where != DEFAULT}


def _checkpoints(values: Values) -> Checkpoints:
    mine = _of(values, "checkpoints")
    del mine["storage_kind"]
    if (contradiction := find_contradiction(_arguments(mine))) is not None:
        order = {OPTIONS: 0, CODE: 1, DEFAULT: 3}
        first, second = sorted((mine[name] for name in contradiction[:2]), key=lambda side: order.get(side.where, 2))
        raise contradiction_error(first.side, second.side, contradiction[2])
    with _naming(mine):
        return Checkpoints(**_arguments(mine, explicit=True))


@contextmanager
def _naming(values: Mapping[str, Value]) -> Iterator[None]:
    """A class knows its arguments, not the keys they came by: add these to its error."""
    try:
        yield
    except ConfigurationError as error:
        sides = ", ".join(setting.side for setting in values.values() if setting.where not in (DEFAULT, CODE))
        raise ConfigurationError(f"{error.happened} Set: {sides}.", safe=error.safe, to_do=error.to_do) from error


def _backend(values: Values) -> StateBackend:
    mine = _of(values, "state")
    with _naming(mine):
        return StateBackend(**{"kind": mine["kind"].value, **_arguments(mine, explicit=True)})


def _restart(values: Values, restart: RestartStrategy | None) -> RestartStrategy:
    mine = _of(values, "restart")
    if all(setting.where in (CODE, DEFAULT) for setting in mine.values()):
        return restart or RestartStrategy.exponential_delay()
    with _naming(mine):
        return build_strategy(mine["type"].value, _arguments(mine, explicit=True))


def _recovery(values: Values) -> Recovery:
    mine = _of(values, "recovery")
    for name, other in (("fork_name", "fork_suffix"), ("fork_suffix", "fork_name")):
        if mine[name].value is not None and mine[other].value is None:
            raise ConfigurationError(
                f"{mine[name].side} is given without {mine[other].option.key}.",
                to_do="give a fork both: penstock run -s PATH --fork NAME --suffix SUFFIX.",
            )
    return Recovery(**_arguments(mine))


def _spark_settings(
    values: Values, backend: StateBackend | None, conf: Mapping[str, str], origin: Mapping[str, str]
) -> dict[str, SparkSetting]:
    """`backend` is None where Spark's own setting names it: then no default of ours belongs to it. `conf` is what the
    user gave by Spark's own names."""
    kind = values["state", "kind"]
    wanted: dict[str, SparkSetting] = {}
    if backend is not None:
        explicit = kind.where != DEFAULT
        if explicit and backend.managed_memory is None:
            backend = replace(backend, managed_memory=True)
        for key, (value, name) in backend.conf().items():
            setting = values["state", name]
            if setting.where != DEFAULT or explicit:
                wanted[key] = SparkSetting(value, None if setting.where == DEFAULT else setting.side)
    parallelism = values["spark", PARTITIONS]
    if parallelism.where != DEFAULT:
        wanted[PARTITIONS] = SparkSetting(str(parallelism.value), parallelism.side)
    return {
        key: setting
        for key, setting in wanted.items()
        if key not in conf or setting.agrees(key, conf[key], origin[key])
    }


def _plain(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text.strip().lower()
