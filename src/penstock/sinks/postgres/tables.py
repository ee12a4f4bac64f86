"""The target table and the sink's own tables: read, compared with the rows, created; and the check before a start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.contracts.sink import CheckContext
from penstock.errors import AccessDenied, ConfigurationError, SchemaMismatch, TableMissing
from penstock.sinks.postgres.connection import Place, mapper
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.postgres.types import PgColumn, Route, column_type, refusal
from penstock.sinks.sql.tables import compare, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


#: A statement with `$1` parameters, run; its rows. Both clients are brought into this form.
Ask = Callable[..., list[tuple[Any, ...]]]

# The scale of a numeric is the last 11 bits of its modifier, with a sign: numeric(5,-2) rounds to hundreds.
_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), NOT (a.attnotnull OR t.typnotnull),
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL, a.attgenerated <> '' OR a.attidentity = 'a',
       b.typname, COALESCE(e.typname, ''), b.typtype = 'e',
       CASE WHEN COALESCE(e.typname, b.typname) = 'numeric' AND GREATEST(a.atttypmod, t.typtypmod) >= 4
            THEN (((GREATEST(a.atttypmod, t.typtypmod) - 4) & 2047) # 1024) - 1024 END,
       CASE WHEN a.attcollation <> 0 THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) ELSE '' END,
       CASE WHEN COALESCE(e.typname, b.typname) = 'varchar' AND GREATEST(a.atttypmod, t.typtypmod) >= 4
            THEN GREATEST(a.atttypmod, t.typtypmod) - 4 END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Also the tables that a crash of the server would empty, and those of other servers, which commit separately.
_TARGET = """
SELECT c.oid::bigint, c.relkind::text, ARRAY(
    SELECT p.relname::text FROM pg_catalog.pg_class p
    WHERE p.oid IN (SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(c.oid))
      AND (p.relkind = 'f' OR p.relkind = 'r' AND p.relpersistence <> 'p') ORDER BY 1)
FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1)
"""
# The columns of each unique index that ON CONFLICT can use.
_UNIQUE = """
SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = $1::bigint::oid AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
  AND i.indisvalid AND i.indnatts = i.indnkeyatts
GROUP BY i.indexrelid
"""
# The counters' start depends on the session, so only differences inside one transaction are meaningful.
_INSERTED = """
SELECT CASE WHEN current_setting('track_counts') = 'on' THEN sum(pg_stat_get_xact_tuples_inserted(relid))::bigint END
FROM (SELECT relid::oid FROM pg_partition_tree($1::bigint::oid::regclass) UNION SELECT $1::bigint::oid) tree
"""


@dataclass(frozen=True, slots=True)
class Table:
    oid: int
    kind: str
    columns: tuple[PgColumn, ...]


def find(ask: Ask, place: Place) -> Table | None:
    """The target table; None if it does not exist. `ConfigurationError` where it cannot keep what is committed."""
    rows = ask(_TARGET, place.target)
    if not rows:
        return None
    oid, kind, forgetful = rows[0]
    if forgetful:
        raise ConfigurationError(
            f"{place} cannot keep what is committed: {', '.join(forgetful)} is unlogged, temporary or foreign. An "
            "unlogged table is empty after a crash of the server, and a foreign one is committed apart from the rest.",
            safe="nothing was written.",
            to_do="ALTER TABLE … SET LOGGED, or name a table without such partitions.",
        )
    return Table(oid, kind, tuple(PgColumn(*row) for row in ask(_COLUMNS, oid)))


def inserted(ask: Ask, table: Table) -> int | None:
    """Rows this session inserted into the table, to compare inside one transaction; None if the server counts none."""
    [(count,)] = ask(_INSERTED, table.oid)
    return None if count is None else int(count)


def fits(schema: pa.Schema, shown: Sequence[str], table: Table, place: Place) -> None:
    """`SchemaMismatch` where rows of `schema` do not go into `table`; `shown` are the types' names in messages."""
    types = {field.name: field.type for field in schema}
    compare(
        zip(schema.names, shown, strict=True),
        table.columns,
        f"the PostgreSQL table {place}",
        lambda _, column: refusal(types[column.name], column),  # type: ignore[arg-type]
    )


def refuse_arrays(table: Table, routes: Mapping[str, Route], place: Place) -> None:
    """`SchemaMismatch` where some columns can only go as text and others are arrays: the text form has none."""
    arrays = [column.name for column in table.columns if column.element and column.name in routes]
    if arrays:
        alone = {name for name, way in routes.items() if way.text_only}
        textual = [f"{column.name} ({column.type})" for column in table.columns if column.name in alone]
        raise SchemaMismatch(
            f"The sink cannot write {', '.join(textual)} of {place} together with the arrays {', '.join(arrays)}.",
            to_do="make the arrays jsonb, or the others text.",
        )


def has_own_tables(ask: Ask, place: Place) -> bool:
    [(there,)] = ask("SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL", place.markers, place.sinks)
    return bool(there)


def is_known(ask: Ask, place: Place, prefix: str) -> bool:
    return has_own_tables(ask, place) and bool(ask(f"SELECT FROM {place.sinks} WHERE sink = $1", prefix))


def own_tables(place: Place) -> tuple[str, ...]:
    markers = (
        f"CREATE TABLE IF NOT EXISTS {place.markers} (sink text NOT NULL, writer text NOT NULL, epoch bigint NOT NULL, "
        "generation bigint NOT NULL, at bigint NOT NULL, PRIMARY KEY (sink, writer))"
    )
    sinks = (
        f"CREATE TABLE IF NOT EXISTS {place.sinks} (sink text PRIMARY KEY, generation bigint NOT NULL, "
        "fence bigint NOT NULL, pruned bigint NOT NULL)"
    )
    return markers, sinks


def new_table(place: Place, schema: StructType, key: Sequence[str]) -> str:
    columns = [f"{quoted(field.name)} {column_type(field.dataType)}" for field in schema.fields]
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE IF NOT EXISTS {place.target} ({', '.join(columns)})"


def arrow_schema(schema: StructType, shaped: StructType) -> tuple[Any, list[str]]:
    """The Arrow schema in which a shaped frame reaches the writers, and the frame's types for messages."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields = [(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in shaped.fields]
    return pa.schema(fields), [field.dataType.simpleString() for field in schema.fields]


_SECONDS = 20.0
_OLDEST = 12


def check(sink: PostgresSink, context: CheckContext, planned: StructType | None) -> list[str]:
    """Warnings; raises what cannot work. Writes nothing."""
    with sink.line("penstock check", _SECONDS) as line, mapper(sink.server, str(sink.place)).mapped("checking"):
        line.begin(_SECONDS)  # a pooler may allow statements, and no transactions
        line.ask("ROLLBACK")
        return _server(sink, context, line.ask) + _table(sink, line.ask, planned)


def _server(sink: PostgresSink, context: CheckContext, ask: Ask) -> list[str]:
    [(version, standby, most, used, fsync, unawaited, publications)] = ask(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
        "current_setting('max_prepared_transactions')::int, (SELECT count(*) FROM pg_prepared_xacts), "
        "current_setting('fsync'), "
        "current_setting('synchronous_standby_names') <> '' "
        "AND current_setting('synchronous_commit') IN ('off', 'local'), "
        "ARRAY(SELECT pubname::text FROM pg_publication WHERE puballtables ORDER BY 1)"
    )
    if version < _OLDEST * 10_000:
        raise ConfigurationError(
            f"The PostgreSQL server at {sink.server} is version {version // 10_000}, at least {_OLDEST} is needed.",
            to_do="use a newer server.",
        )
    if standby:
        raise ConfigurationError(
            f"The PostgreSQL server at {sink.server} is a standby, which takes no writes.",
            to_do="connect to the primary; with several hosts in the URL, add target_session_attrs=read-write.",
        )
    warnings = []
    if sink.mode == "two_phase" and most == 0:
        raise ConfigurationError(
            f"Mode two_phase needs prepared transactions, and the PostgreSQL server at {sink.server} allows none "
            "(max_prepared_transactions=0).",
            to_do="set max_prepared_transactions to the number of writers or more and restart the server, or say "
            "mode='staged'.",
        )
    if sink.mode == "auto" and most == 0:
        warnings.append("the server allows no prepared transactions, so the sink is staged: rows are written twice")
    writers = _partitions()
    if sink.mode in ("auto", "two_phase") and 0 < most - used < writers:
        warnings.append(
            f"the server has room for {most - used} prepared transactions (max_prepared_transactions={most}, {used} in "
            f"use), and an epoch may have {writers} writers: raise it, or say mode='staged', which needs none"
        )
    if sink.lock_seconds >= context.timeout_seconds:
        warnings.append(
            f"lock_timeout is {sink.lock_seconds:g} s, not below the checkpoint timeout of "
            f"{context.timeout_seconds:g} s: writers that wait for a lock will be cut off without a reason"
        )
    if fsync == "off":
        warnings.append("the server runs with fsync=off: a crash of its machine can lose what was committed")
    if unawaited:
        warnings.append(
            "synchronous_commit is off or local for this user: a prepared transaction is committed without waiting for "
            "the synchronous standby; set it to on"
        )
    if publications:
        warnings.append(
            f"publications for all tables ({', '.join(publications)}) send the sink's own tables (penstock_…) too, and "
            "subscribers stop at a table that they do not have: publish tables by name"
        )
    return warnings


def _table(sink: PostgresSink, ask: Ask, planned: StructType | None) -> list[str]:
    place = sink.place
    table = find(ask, place)
    if table is None:
        if not sink.create:
            raise mapper(sink.server, str(place)).error(TableMissing, to_do=sink.missing_to_do())
        _may_create(sink, place.schema, ask, "create the table")
        _require_own(sink, ask)
        return []
    if table.kind not in ("r", "p"):
        raise ConfigurationError(
            f"{place} is not an ordinary or partitioned table, and rows cannot be prepared in anything else.",
            to_do="name a table.",
        )
    for right in ("INSERT", "SELECT", "UPDATE") if sink.key else ("INSERT",):
        if not ask("SELECT has_table_privilege($1::bigint::oid, $2)", table.oid, right)[0][0]:
            raise AccessDenied(
                f"This user has no right to {right} on {place} at {sink.server}.",
                to_do=f"GRANT {right} ON {place} TO the user of the sink.",
            )
    if sink.key and sorted(sink.key) not in [sorted(key) for (key,) in ask(_UNIQUE, table.oid)]:
        raise ConfigurationError(
            f"Mode upsert needs a unique index of {place} on exactly {', '.join(sink.key)}, and there is none.",
            to_do=f"CREATE UNIQUE INDEX ON {place.target} ({', '.join(sink.key)}).",
        )
    if planned is not None:
        from pyspark.sql.types import StringType, StructField, StructType

        from penstock.sinks.postgres.types import goes_as_json

        shaped = [StructField(f.name, StringType() if goes_as_json(f.dataType) else f.dataType) for f in planned.fields]
        fits(*arrow_schema(planned, StructType(shaped)), table, place)
    _require_own(sink, ask)
    return [
        f"column {column.name!r} is {column.type}: fractions of a second beyond its precision are rounded"
        for column in table.columns
        if column.name in (planned.names if planned else ()) and re.match(r"time.*\([0-5]\)", column.type)
    ]


def _require_own(sink: PostgresSink, ask: Ask) -> None:
    staged = sink.settled_mode(ask) == "staged"
    if staged or not has_own_tables(ask, sink.place):
        what = "create staging tables" if staged else f"run: {'; '.join(own_tables(sink.place))}"
        _may_create(sink, sink.place.own_schema, ask, what)


def _may_create(sink: PostgresSink, schema: str, ask: Ask, what: str) -> None:
    [(there,)] = ask("SELECT to_regnamespace(quote_ident($1)) IS NOT NULL", schema)
    if not there:
        raise ConfigurationError(
            f"The schema {schema!r} does not exist at {sink.server}.", to_do="create it, or name another."
        )
    if not ask("SELECT has_schema_privilege($1, 'CREATE')", schema)[0][0]:
        raise AccessDenied(
            f"This user has no right to CREATE in the schema {schema!r} at {sink.server}.",
            to_do=f"grant it, so that the sink may {what}",
        )


def _partitions() -> int:
    """How many tasks Spark probably runs in one epoch; 0 without a session."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        return 0
    return max(session.sparkContext.defaultParallelism, int(session.conf.get("spark.sql.shuffle.partitions") or 0))
