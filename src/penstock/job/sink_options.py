"""The options of `format("penstock")`: its own, and those of each sink, which are the arguments of its class.

Spark hands options over as text, with names in lower case. An argument that is a mapping takes an option for each of
its entries, `options.security.protocol`; one that is a sequence takes texts between commas.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import penstock
from penstock.config import Checkpoints
from penstock.config.option import boolean, whole
from penstock.contracts.guarantees import Chain, Guarantee
from penstock.contracts.sink import TwoPhaseSink
from penstock.errors import ConfigurationError
from penstock.naming import check_name

SINKS = {
    "kafka": "KafkaSink", "files": "FileSink", "delta": "DeltaSink", "iceberg": "IcebergSink",
    "postgres": "PostgresSink", "mysql": "MySqlSink", "redis": "RedisSink",
}  # fmt: skip

#: The format's own, with what they mean.
OWN = {
    "sink": f"which sink: {', '.join(SINKS)}, or `module:Class` of your own",
    "uid": "the query's name in the other system and in the ledger; keep it over restarts",
    "checkpointlocation": "Spark's checkpoint of the query, a path that the driver can reach; a pipeline sets it",
    "job": "the job's name in the other system; without it the ledger generates one and keeps it",
    "ledger": "folder for the ledgers of the job's queries; without it the ledger is in the query's checkpoint",
    "timeout": "how long an epoch may take: nothing ends it then, but the timeouts of the sink must be longer",
    "commit_timeout": "how long a decided epoch's commits are tried and proven, before the query fails",
    "abort_timeout": "how long aborting may take",
    "trusted_schemes": "as penstock.ledger.trusted-schemes",
}  # fmt: skip
_LIMITS = ("timeout", "commit_timeout", "abort_timeout", "trusted_schemes")
_SPARKS = ("path", "queryname")  # what Spark adds by itself


def parse_options(options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a `Relay`, without its driver."""
    texts = {name.lower(): text for name, text in options.items()}
    for name in ("sink", "uid"):
        if not texts.get(name):
            raise _wrong(f"has no option {name!r}", f"add .option({name!r}, …): {OWN[name]}.")
    if not texts.get("checkpointlocation"):
        raise _wrong(
            "has no option 'checkpointLocation', so there is no place for the ledger, nor a log to go by",
            "add .option('checkpointLocation', …) to the query, also where the session has a default for it.",
        )
    sink = sink_class(texts["sink"])
    arguments = arguments_of(sink)
    unknown = [name for name in texts if name not in OWN and name not in _SPARKS and _argument(name, arguments) is None]
    if unknown:
        known = sorted({*OWN, *arguments, *(f"{name}.…" for name, kind in arguments.items() if is_mapping(kind))})
        raise _wrong(
            f"does not know the option {', '.join(map(repr, sorted(unknown)))} with the sink {texts['sink']!r}",
            f"remove it, or take one of: {', '.join(known)}.",
        )
    values: dict[str, Any] = {}
    for name, text in texts.items():
        argument = _argument(name, arguments) if name not in OWN else None
        if argument is None:
            continue
        kind = arguments[argument]
        if is_mapping(kind):
            values.setdefault(argument, {})[name.partition(".")[2]] = text
        else:
            values[argument] = _parsed(kind, text, name)
    limits: dict[str, Any] = {
        name: texts[name].split(",") if name == "trusted_schemes" else texts[name] for name in _LIMITS if name in texts
    }
    made, uid = _made(sink, values, texts["sink"]), check_name(texts["uid"], "uid")
    Chain((made.link(uid),)).require(Guarantee.EXACTLY_ONCE)
    return {
        "sink": made,
        "uid": uid,
        "job": check_name(texts["job"], "job") if texts.get("job") else None,
        "checkpoint": texts["checkpointlocation"],
        "folder": texts.get("ledger") or None,
        "limits": Checkpoints(**limits),
    }


def sink_class(name: str) -> Callable[..., TwoPhaseSink]:
    """The class, or another callable, that makes the sink of this name."""
    if name.lower() in SINKS:
        return getattr(penstock, SINKS[name.lower()])  # type: ignore[no-any-return]
    module, colon, attribute = name.partition(":")
    try:
        if colon:
            return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise _wrong(f"cannot load the sink {name!r} where the driver runs ({error})", "install it there.") from None
    raise _wrong(f"knows no sink {name!r}", f"take one of {', '.join(SINKS)}, or module:Class of your own.")


def arguments_of(sink: Callable[..., TwoPhaseSink]) -> dict[str, str]:
    """The options of a sink with their types as text, from its signature. `**options` is a mapping."""
    return {
        parameter.name.lower(): "Mapping" if parameter.kind is parameter.VAR_KEYWORD else _type_of(parameter)
        for parameter in inspect.signature(sink).parameters.values()
        if parameter.kind is not parameter.VAR_POSITIONAL and "Format" not in _type_of(parameter)  # which is no text
    }


def is_mapping(kind: str) -> bool:
    return "Mapping" in kind or kind.startswith("dict")


def _type_of(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _argument(name: str, arguments: Mapping[str, str]) -> str | None:
    head, dot, _ = name.partition(".")
    if head not in arguments or is_mapping(arguments[head]) != bool(dot):
        return None
    return head


def _parsed(kind: str, text: str, name: str) -> Any:
    if kind == "bool":
        return boolean(text, name)
    if kind in ("int", "int | None"):
        return whole(text, name)
    if "Sequence[" in kind or "tuple[" in kind:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    return text


def _made(sink: Callable[..., TwoPhaseSink], values: dict[str, Any], name: str) -> TwoPhaseSink:
    spread = [one.name for one in inspect.signature(sink).parameters.values() if one.kind is one.VAR_KEYWORD]
    for mapping in spread:
        values |= values.pop(mapping, {})
    try:
        return sink(**values)
    except TypeError as error:
        missing = str(error).rpartition("argument")[2].lstrip("s: ")
        raise _wrong(f"lacks an option of the sink {name!r}: {missing or error}", "add it.") from None


def _wrong(what: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(f"format('penstock') {what}.", to_do=to_do)
