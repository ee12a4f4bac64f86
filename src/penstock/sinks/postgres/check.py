"""What must hold before a job may write to PostgreSQL, asked from the server; nothing is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.errors import AccessDenied, ConfigurationError, TableMissing
from penstock.sinks.postgres import catalog
from penstock.sinks.postgres.catalog import Ask
from penstock.sinks.postgres.faults import mapper
from penstock.sinks.postgres.sink import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.contracts.sink import CheckContext
    from penstock.sinks.postgres.sink import PostgresSink

_SECONDS = 20.0
_OLDEST = 12
_SAFE = "nothing was started."


def check(sink: PostgresSink, context: CheckContext, planned: StructType | None) -> list[str]:
    """What is unwise; what cannot work is raised."""
    line = sink.line("penstock check", _SECONDS)
    try:
        with mapper(sink.server, str(sink.place)).mapped("checking"):
            line.begin(_SECONDS)  # a pooler may allow questions, and no transactions
            line.ask("ROLLBACK")
            findings = _server(sink, context, line.ask)
            findings += _table(sink, line.ask, planned)
    finally:
        line.close()
    return findings


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
            safe=_SAFE,
            to_do="use a newer server.",
        )
    if standby:
        raise ConfigurationError(
            f"The PostgreSQL server at {sink.server} is a standby, which takes no writes.",
            safe=_SAFE,
            to_do="connect to the primary; with several hosts in the URL, add target_session_attrs=read-write.",
        )
    said = []
    if sink.mode == "two_phase" and most == 0:
        raise ConfigurationError(
            f"Mode two_phase needs prepared transactions, and the PostgreSQL server at {sink.server} allows none "
            "(max_prepared_transactions=0).",
            safe=_SAFE,
            to_do="set max_prepared_transactions to the number of writers or more and restart the server, or say "
            "mode='staged'.",
        )
    if sink.mode == "auto" and most == 0:
        said.append("the server allows no prepared transactions, so the sink is staged: rows are written twice")
    writers = _partitions()
    if sink.mode in ("auto", "two_phase") and 0 < most - used < writers:
        said.append(
            f"the server has room for {most - used} prepared transactions (max_prepared_transactions={most}, {used} in "
            f"use), and an epoch may have {writers} writers: raise it, or coalesce the DataFrame"
        )
    if sink.lock_seconds >= context.timeout_seconds:
        said.append(
            f"lock_timeout is {sink.lock_seconds:g} s, not below the checkpoint timeout of "
            f"{context.timeout_seconds:g} s: writers that wait for a lock will be cut off without a reason"
        )
    if fsync == "off":
        said.append("the server runs with fsync=off: a crash of its machine can lose what was committed")
    if unawaited:
        said.append(
            "synchronous_commit is off or local for this user: a prepared transaction is committed without waiting for "
            "the synchronous standby; set it to on"
        )
    if publications:
        said.append(
            f"publications for all tables ({', '.join(publications)}) send the sink's own tables (penstock_…) too, and "
            "subscribers stop at a table that they do not have: publish tables by name"
        )
    return said


def _table(sink: PostgresSink, ask: Ask, planned: StructType | None) -> list[str]:
    place = sink.place
    table = catalog.find(ask, place)
    if table is None:
        if not sink.create:
            raise mapper(sink.server, str(place)).error(TableMissing, to_do=sink.missing_to_do())
        _may_create(sink, place.schema, ask, "make the table")
        return _own(sink, ask)
    if table.kind not in ("r", "p"):
        raise ConfigurationError(
            f"{place} is not an ordinary or partitioned table, and rows cannot be prepared in anything else.",
            safe=_SAFE,
            to_do="name a table.",
        )
    for right in ("INSERT", "SELECT", "UPDATE") if sink.key else ("INSERT",):
        if not ask("SELECT has_table_privilege($1::bigint::oid, $2)", table.oid, right)[0][0]:
            raise AccessDenied(
                f"This user has no right to {right} on {place} at {sink.server}.",
                safe=_SAFE,
                to_do=f"GRANT {right} ON {place} TO the user of the sink.",
            )
    if sink.key and sorted(sink.key) not in [sorted(key) for key in catalog.unique_keys(ask, table)]:
        raise ConfigurationError(
            f"Mode upsert needs a unique index of {place} on exactly {', '.join(sink.key)}, and there is none.",
            safe=_SAFE,
            to_do=f"CREATE UNIQUE INDEX ON {place.target} ({', '.join(sink.key)}).",
        )
    if planned is not None:
        from pyspark.sql.types import StringType, StructField, StructType

        from penstock.sinks.postgres.types import goes_as_json

        shaped = [StructField(f.name, StringType() if goes_as_json(f.dataType) else f.dataType) for f in planned.fields]
        catalog.fits(*arrow_schema(planned, StructType(shaped)), table, place)
    coarse = [
        f"column {column.name!r} is {column.type}: fractions of a second beyond its precision are rounded"
        for column in table.columns
        if column.name in (planned.names if planned else ()) and re.match(r"time.*\([0-5]\)", column.type)
    ]
    return [*coarse, *_own(sink, ask)]


def _own(sink: PostgresSink, ask: Ask) -> list[str]:
    """The sink's own tables are there, or can be made."""
    staged = sink.settled_mode(ask) == "staged"
    if staged or not catalog.has_own_tables(ask, sink.place):
        what = "make staging tables" if staged else f"run: {'; '.join(catalog.own_tables(sink.place))}"
        _may_create(sink, sink.place.own_schema, ask, what)
    return []


def _may_create(sink: PostgresSink, schema: str, ask: Ask, what: str) -> None:
    [(there,)] = ask("SELECT to_regnamespace(quote_ident($1)) IS NOT NULL", schema)
    if not there:
        raise ConfigurationError(
            f"The schema {schema!r} does not exist at {sink.server}.", safe=_SAFE, to_do="create it, or name another."
        )
    if not ask("SELECT has_schema_privilege($1, 'CREATE')", schema)[0][0]:
        raise AccessDenied(
            f"This user has no right to CREATE in the schema {schema!r} at {sink.server}.",
            safe=_SAFE,
            to_do=f"grant it, so that the sink may {what}",
        )


def _partitions() -> int:
    """How many tasks Spark will most likely run side by side in one epoch; 0 where no session tells."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        return 0
    return max(session.sparkContext.defaultParallelism, int(session.conf.get("spark.sql.shuffle.partitions") or 0))
