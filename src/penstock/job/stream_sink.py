"""`StreamSink`: `df.writeStream.format("penstock")`, for every place where a query can be started and no Python of the
user's runs in the driver: Spark Connect, Declarative Pipelines, notebooks on a server.

Spark makes these objects anew in each of its Python workers, see `engine.relay`. A source that has travelled from one
to another is the one whose epoch has run; one that was made where it is asked for a writer begins an epoch.

Its options are its own, and those of each sink, which are the arguments of its class. Spark hands options over as text,
with names in lower case. An argument that is a mapping takes an option for each of its entries,
`options.security.protocol`; one that is a sequence takes texts between commas.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, WriterCommitMessage

import penstock
from penstock.config import Checkpoints
from penstock.config.option import boolean, whole
from penstock.contracts.guarantees import Chain, Guarantee, format_link
from penstock.contracts.sink import TwoPhaseSink
from penstock.errors import ConfigurationError, PenstockError
from penstock.naming import check_name

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:
    raise ConfigurationError(
        "format('penstock') needs writers of streams that take Arrow's batches, which this PySpark does not have.",
        to_do="use PySpark 4.1 or newer; or penstock.exactly_once or a Job, which work from 4.0 on.",
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.engine.relay import Relay

_HIDE = "SPARK_HIDE_TRACEBACK"  # with it PySpark's workers send an error without the way to it

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


@dataclass
class Report(WriterCommitMessage):
    """What a task answers, as JSON."""

    text: str


class StreamSink(DataSource):
    """Exactly once from any streaming query into a sink of Penstock.

        spark.dataSource.register(penstock.StreamSink)
        df.writeStream.format("penstock").option("sink", "kafka").option("servers", …).option("topic", …) \\
          .option("uid", "alerts").option("checkpointLocation", path).start()

    `uid` names the query in the other system; keep it over restarts. All other options: docs/reference/format.md.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options: Any = options
        self._travelled = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_travelled": True}

    @staticmethod
    def explain(options: Mapping[str, str]) -> str:
        """What a query with these options promises, link by link, and what this way cannot do. The source is the
        query's own, and not looked at."""
        arguments = parse_options(options)
        return Chain((format_link(), arguments["sink"].link(arguments["uid"]))).explain()

    def streamWriter(self, schema: StructType, overwrite: bool) -> EpochWriter:  # noqa: N802 - Spark's name
        with _plainly():
            if overwrite:
                raise ConfigurationError(
                    "format('penstock') was given outputMode('complete'), which writes every row again in each epoch.",
                    to_do="use outputMode('append') or 'update'; with 'update', a sink that updates by key.",
                )
            from penstock.engine.relay import Relay

            relay = Relay(**parse_options(self.options), driver=_driver())
            return EpochWriter(relay, None if self._travelled else schema)

    def schema(self, *_: Any, **__: Any) -> NoReturn:
        with _plainly():
            raise ConfigurationError(
                "format('penstock') was asked to read, or to write a batch, and it is a sink of streaming queries.",
                to_do="use df.writeStream.format('penstock').",
            )

    writer = schema


class EpochWriter(DataSourceStreamArrowWriter):
    """One epoch of the query. With a schema it begins the epoch and then goes to its tasks."""

    def __init__(self, relay: Relay, schema: StructType | None) -> None:
        self._relay = relay
        if schema is not None:
            from penstock.engine.relay import fitted

            self._fit = relay.sink.fit(schema)
            self._nullable = {field.name.lower(): field.nullable for field in schema.fields}
            self._opened, self._job = relay.open(fitted(self._fit, schema)), relay.job_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Report:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with _plainly():
            text = self._relay.write(self._opened, self._fit, self._nullable, iterator, context, self._job)
        return Report(text)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        with _plainly():
            self._relay.commit([message.text for message in messages], batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        self._relay.abort()


def _driver() -> str:
    """What all workers of one driver share: the folder of its blocks, which Spark names anew for each driver. Without
    it every worker counts as a driver of its own, so that each epoch recovers."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or secrets.token_hex(8)
    return hashlib.sha256(folders.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """A named error reaches the user as its own sentences, without a trace of this worker, which ends with it."""
    from penstock.spark.executors import TaskFault

    try:
        yield
    except (TaskFault, PenstockError) as error:
        os.environ[_HIDE] = "1"
        if isinstance(error, TaskFault) and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


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
