"""Rows as JSON or CSV without loss: the options of Spark's rendering, and map keys as text.

Spark's own writers cut timestamps to milliseconds, CSV's trims text, and `to_json` shows its own memory where the key
of a map is no text: days since 1970 for a date, the address of a Java object for a binary. What was decided must arrive
as it was, and a replay must write the same, so:

| key of a map | in JSON |
|---|---|
| text | as it is |
| whole number, decimal, float, boolean, interval | as Spark casts it to text |
| date | `2024-12-31` |
| timestamp | as a value: `2024-12-31T23:59:59.000001Z`; without time zone the same without `Z` |
| binary, array, struct | refused |

Two keys of one map never become the same text: each of these texts reads back to one value of the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError, SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

# In UTC: the offsets of old times have seconds in many zones (Berlin in 1880: 53 minutes and 28 seconds), which hardly
# any reader takes. With a zone of the user's own they are shown, and not cut off.
_TIMES = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
LOSSLESS: Mapping[str, Mapping[str, str]] = {
    "json": _TIMES,
    "csv": {**_TIMES, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
}

#: What Spark's writers take. It compares the names without regard to case, and takes the rest for nothing.
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

_OURS = ("header", "lineSep", "encoding", "charset", "pretty")
_AGAIN = {"delimiter": "sep", "charset": "encoding"}


def named_options(kind: str, given: Mapping[str, object]) -> dict[str, str]:
    """The options under the names that Spark documents. `ConfigurationError` for what would be silently ignored."""
    known = {name.lower(): name for name in OPTIONS[kind]}
    found: dict[str, str] = {}
    for name, value in given.items():
        own = known.get(name.lower())
        if own is None:
            raise _refused(kind, f"it has no option {name!r}")
        own = _AGAIN.get(own, own)
        if own in found:
            raise _refused(kind, f"the option {own!r} is given twice")
        found[own] = str(value)
    if found.get("encoding", "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise _refused(kind, "text files are written in UTF-8 only")
    if found.get("pretty", "false").lower() == "true":
        raise _refused(kind, "pretty JSON would spread a row over several lines")
    if found.get("lineSep", "\n") == "":
        raise _refused(kind, "lines need a separator")
    return found


def _refused(kind: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"FileSink cannot write {kind} as asked: {problem}.",
        safe="nothing was started.",
        to_do=f"remove the option; there are {', '.join(OPTIONS[kind]) or 'none'}, and the compression has its own "
        "parameter.",
    )


def rendering(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    """What `to_json` and `to_csv` are given. A format of the user's own is shown in the session's zone, as Spark would:
    it may have no place for one."""
    default = dict(LOSSLESS[kind])
    if "timestampFormat" in options:
        del default["timeZone"]
    return {**default, **{name: value for name, value in options.items() if name not in _OURS}}


def keys_as_text(column: Column, kind: DataType) -> Column:
    """`column` with text for the keys of all maps in it, however deep."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if not _has_keys(kind):
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
        return f.to_csv(f.struct(key), dict(LOSSLESS["csv"]))  # one column of CSV is the text that values have
    return key.cast("string")


def _has_keys(kind: DataType) -> bool:
    """Whether a map in it has keys that are no text."""
    from pyspark.sql import types as t

    if isinstance(kind, t.ArrayType):
        return _has_keys(kind.elementType)
    if isinstance(kind, t.StructType):
        return any(_has_keys(field.dataType) for field in kind.fields)
    return isinstance(kind, t.MapType) and (not isinstance(kind.keyType, t.StringType) or _has_keys(kind.valueType))


def refuse_keys(fields: Iterable[StructField], where: str) -> None:
    """`SchemaMismatch` for maps that JSON has no keys for."""
    problems = [
        f"column {field.name} has a map with keys of {key}" for field in fields for key in _unfit_keys(field.dataType)
    ]
    if problems:
        raise SchemaMismatch(
            f"{where} cannot take these rows as JSON, whose keys are text: {'; '.join(problems)}.",
            safe="nothing was written.",
            to_do="make text of the keys first, for example with transform_keys and hex, or an array with map_entries.",
        )


def _unfit_keys(kind: DataType) -> list[str]:
    from pyspark.sql import types as t

    if isinstance(kind, t.ArrayType):
        return _unfit_keys(kind.elementType)
    if isinstance(kind, t.StructType):
        return [key for field in kind.fields for key in _unfit_keys(field.dataType)]
    if not isinstance(kind, t.MapType):
        return []
    unfit = isinstance(kind.keyType, (t.BinaryType, t.ArrayType, t.StructType))
    return [*([kind.keyType.simpleString()] if unfit else []), *_unfit_keys(kind.valueType)]
