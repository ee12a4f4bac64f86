"""Rows as JSON or CSV without loss: the options of Spark's rendering, and map keys as text.

Spark's writers cut timestamps to milliseconds, the one for CSV trims text, and `to_json` shows its internals for map
keys that are not text. So keys become text as docs/how-to/files.md describes: each reads back to one value of the type,
so two keys of one map never become the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError, SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

# In UTC: offsets of old times have seconds in many zones, which hardly any reader accepts.
_TIMES = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
LOSSLESS: Mapping[str, Mapping[str, str]] = {
    "json": _TIMES,
    "csv": {**_TIMES, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
}

#: Options of Spark's writers. Spark ignores case in their names, and silently ignores other options.
_SHARED = (
    *("timeZone", "timestampFormat", "timestampNTZFormat", "dateFormat", "locale"),
    *("encoding", "charset", "lineSep"),
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "parquet": (),
    "json": (*_SHARED, "ignoreNullFields", "writeNonAsciiCharacterAsCodePoint", "pretty"),
    "csv": (
        *(*_SHARED, "header", "sep", "delimiter", "quote", "quoteAll", "escape", "escapeQuotes"),
        *("charToEscapeQuoteEscaping", "nullValue", "emptyValue", "comment"),
        *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace"),
    ),
}

_NOT_RENDERED = ("header", "lineSep", "encoding", "charset", "pretty")
_ALIASES = {"delimiter": "sep", "charset": "encoding"}


def named_options(kind: str, options: Mapping[str, object]) -> dict[str, str]:
    """The options under the names that Spark documents. `ConfigurationError` for those that Spark would ignore."""
    known = {name.lower(): name for name in OPTIONS[kind]}
    named: dict[str, str] = {}
    for name, value in options.items():
        option = known.get(name.lower())
        if option is None:
            raise _refused(kind, f"it has no option {name!r}")
        option = _ALIASES.get(option, option)
        if option in named:
            raise _refused(kind, f"the option {option!r} is given twice")
        named[option] = str(value)
    if named.get("encoding", "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise _refused(kind, "text files are written in UTF-8 only")
    if named.get("pretty", "false").lower() == "true":
        raise _refused(kind, "pretty JSON would spread a row over several lines")
    if named.get("lineSep", "\n") == "":
        raise _refused(kind, "lines need a separator")
    return named


def _refused(kind: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"FileSink cannot write {kind} as asked: {problem}.",
        to_do=f"remove the option; there are {', '.join(OPTIONS[kind]) or 'none'}, and the compression has its own "
        "parameter.",
    )


def rendering(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options for `to_json` and `to_csv`; a user's own time format uses the session's zone, as in Spark."""
    default = dict(LOSSLESS[kind])
    if "timestampFormat" in options:
        del default["timeZone"]
    return {**default, **{name: value for name, value in options.items() if name not in _NOT_RENDERED}}


def is_nested(kind: DataType) -> bool:
    """Whether a column of this type becomes JSON where its target has no such columns."""
    return kind.simpleString().startswith(("array", "map", "struct", "variant"))


def keys_as_text(column: Column, kind: DataType) -> Column:
    """`column` with text keys in all of its maps, at any depth."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if not any(isinstance(part, t.MapType) and not isinstance(part.keyType, t.StringType) for part in types_in(kind)):
        return column
    if isinstance(kind, t.ArrayType):
        return f.transform(column, lambda each: keys_as_text(each, kind.elementType))
    if isinstance(kind, t.StructType):
        fields = (keys_as_text(column.getField(part.name), part.dataType).alias(part.name) for part in kind.fields)
        return f.when(column.isNotNull(), f.struct(*fields))
    assert isinstance(kind, t.MapType)
    return f.map_from_entries(
        f.transform(
            f.map_entries(column),
            lambda entry: f.struct(
                _key(entry.getField("key"), kind.keyType).alias("key"),
                keys_as_text(entry.getField("value"), kind.valueType).alias("value"),
            ),
        )
    )


def _key(key: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        return f.to_csv(f.struct(key), dict(LOSSLESS["csv"]))  # the same text as for values
    return key.cast("string")


def types_in(kind: DataType) -> Iterator[DataType]:
    """`kind` and every type inside it, however deep."""
    from pyspark.sql import types as t

    yield kind
    inside: list[DataType] = []
    if isinstance(kind, t.ArrayType):
        inside = [kind.elementType]
    elif isinstance(kind, t.MapType):
        inside = [kind.keyType, kind.valueType]
    elif isinstance(kind, t.StructType):
        inside = [field.dataType for field in kind.fields]
    for part in inside:
        yield from types_in(part)


def column_problems(frame: DataFrame, unfit: Callable[[DataType], bool]) -> list[str]:
    """Why no file or table can have the columns of `frame`: none, one twice, or a type that is `unfit`."""
    problems = [] if frame.columns else ["there are no columns"]
    lower = [name.lower() for name in frame.columns]
    problems += [f"column {name} is there twice" for name in sorted({name for name in lower if lower.count(name) > 1})]
    columns = frame.schema.fields
    return problems + [f"column {it.name} is {it.dataType.simpleString()}" for it in columns if unfit(it.dataType)]


def refuse_keys(fields: Iterable[StructField], where: str) -> None:
    """`SchemaMismatch` for maps whose keys JSON cannot hold."""
    from pyspark.sql import types as t

    problems = [
        f"column {field.name} has a map with keys of {part.keyType.simpleString()}"
        for field in fields
        for part in types_in(field.dataType)
        if isinstance(part, t.MapType) and isinstance(part.keyType, (t.BinaryType, t.ArrayType, t.StructType))
    ]
    if problems:
        raise SchemaMismatch(
            f"{where} cannot take these rows as JSON, whose keys are text: {'; '.join(problems)}.",
            to_do="make text of the keys first, for example with transform_keys and hex, or an array with map_entries.",
        )


def digits_of(column: pa.Array) -> pa.Array:
    """Decimals as strings with all digits and no exponent, which a database would read as an approximate number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.cast(pa.string())
    scientific = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(scientific).as_py():
        return text
    # Arrow has no such format, so Python formats these one by one.
    plain = [format(value, "f") for value in column.filter(scientific).to_pylist()]
    return pc.replace_with_mask(text, scientific, pa.array(plain, pa.string()))
