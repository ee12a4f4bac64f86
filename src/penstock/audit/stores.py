"""Folders, tables and databases as their readers see them. docs/how-to/audit.md says of which writer a row is."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.audit.compare import Decided, Later, Part, Visible
from penstock.audit.kafka import rows_of_topic
from penstock.engine.hashing import values_of
from penstock.storage.local import task_tree
from penstock.storage.s3 import S3Folder

Columns = Sequence[pa.Field]
"""What the program writes, in its order; empty where only the place itself says it."""

_OWN_FILE = re.compile(r"part-(?P<uid>.+)-e(?P<epoch>\d{10})-w\d+-[0-9a-f]+\..+")
_CSV_ROW = re.compile(rb'(?:[^"\n]|"(?:[^"\\]|\\.)*")*\n', re.DOTALL)
_ROWS = 50_000


def part_of(table: pa.Table, where: str, columns: Columns = ()) -> Part:
    """The rows of a table, hashed in the order and types of `columns`; only counted where that is not possible."""
    fields = columns or list(table.schema)
    nullable = tuple(field.nullable for field in fields)
    part = Part(where, list(dict.fromkeys([nullable, (True,) * len(nullable), (False,) * len(nullable)])))
    try:
        arrays = [table.column(field.name).cast(field.type).combine_chunks() for field in fields]
        part.add([values_of(array) for array in arrays], table.num_rows)
    except (TypeError, KeyError, pa.ArrowException):
        part = Part(where)
        part.rows = table.num_rows
    return part


def read_files(sink: Any, decided: Sequence[Decided], columns: Columns, later: Later) -> Visible:
    visible, epochs = Visible(), [writer.epoch for writer in decided]
    names, read = _folder(sink)
    finals = {str(writer.payload.get("final")): visible.group(writer) for writer in decided}
    for name in names:
        own = _OWN_FILE.fullmatch(name)
        asked = own is None or (unquote(own["uid"]) == decided[0].sink and int(own["epoch"]) in epochs)
        data = _if_there(partial(read, name)) if asked else None
        if data is not None and name in finals:
            visible.parts[finals[name]] = _part_of_file(sink, data, name)
        elif data is not None:
            visible.others.append(_part_of_file(sink, data, name))
    missing = "the file was moved away or removed since"
    visible.gone = {key: missing for key in finals.values() if key not in visible.parts}
    return visible


def _folder(sink: Any) -> tuple[list[str], Callable[[str], bytes]]:
    """The files that readers of the folder see, and a way to read one."""
    place: Any = S3Folder(sink.path, endpoint=sink.endpoint, region=sink.region) if sink.on_s3 else task_tree(sink.path)
    names = place.names("") if sink.on_s3 else place.file_names("")
    return [name for name in names if "/" not in name and name[0] not in "_."], place.read


def _part_of_file(sink: Any, data: bytes, name: str) -> Part:
    table = _table_of_file(sink, data, name)
    return Part(name) if table is None else part_of(table, name)


def _table_of_file(sink: Any, data: bytes, name: str) -> pa.Table | None:
    """None for no file of this format: its readers get no row from it."""
    try:
        if sink.format == "parquet":
            return pq.read_table(io.BytesIO(data))
        codec = {".gz": "gzip", "bz2": "bz2"}.get(name[-3:])
        plain = pa.input_stream(pa.py_buffer(data), compression=codec).read() if codec else data
    except (pa.ArrowException, OSError):
        return None
    end = sink.options.get("lineSep", "\n").encode()
    lines = plain.split(end)[:-1]
    if sink.format == "csv" and b'"' in plain and end == b"\n":
        lines = [line[:-1] for line in _CSV_ROW.findall(plain)]
    header = sink.format == "csv" and sink.options.get("header", "false").lower() == "true"
    return pa.table({"value": pa.array(lines[header:], pa.large_binary())})


def read_table(sink: Any, decided: Sequence[Decided], columns: Columns, later: Later) -> Visible:
    """A Delta or Iceberg table at its newest version."""
    visible, (newest, former) = Visible(), _delta(sink) if hasattr(sink, "path") else _iceberg(sink)
    written = {
        file["name"].rpartition("/")[2]: (file["name"], visible.group(writer))
        for writer in (*later(), *decided)
        for file in writer.payload.get("files", ())
    }
    for path, read in newest.items():
        part, known = part_of(read(), path, columns), written.pop(path.rpartition("/")[2], None)
        if known is None:
            visible.others.append(part)
        else:
            visible.parts.setdefault(known[1], Part(path, part.layouts)).merge(part)
    for name, key in written.values():  # those that the table has replaced
        rows = former(name)
        if rows is None:
            visible.gone[key] = f"compaction: {name} was replaced in the table and is deleted"
            continue
        part = part_of(rows, name, columns)
        before, visible.others = visible.others, [other.without(part) for other in visible.others]
        found = sum(other.rows for other in before) - sum(other.rows for other in visible.others)
        if found < part.rows:
            part = Part(f"{name}, replaced")
            part.rows = found
        visible.parts.setdefault(key, Part(name, part.layouts)).merge(part)
    visible.others = [other for other in visible.others if other.rows]
    return visible


_Files = tuple[Mapping[str, Callable[[], pa.Table]], Callable[[str], pa.Table | None]]


def _delta(sink: Any) -> _Files:
    """The files of the newest version; and a way to read one that is no longer in it, None where it is deleted."""
    from deltalake import DeltaTable

    dataset = DeltaTable(sink.path, storage_options=dict(sink.storage_options)).to_pyarrow_dataset()
    files = {part.path: lambda p=part: p.to_table(schema=dataset.schema) for part in dataset.get_fragments()}
    return files, lambda name: _if_there(lambda: pq.read_table(name, filesystem=dataset.filesystem))


def _iceberg(sink: Any) -> _Files:
    from pyiceberg.catalog import load_catalog

    table = load_catalog(sink.catalog, **sink.properties).load_table(sink.table)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    folder = f"{table.location()}/data"

    def read(path: str) -> pa.Table:
        with table.io.new_input(path).open() as file:
            return pq.read_table(file)

    return {p: lambda p=p: read(p) for p in paths}, lambda name: _if_there(lambda: read(f"{folder}/{name}"))


def _if_there(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:
        return None


def read_postgres(sink: Any, decided: Sequence[Decided], columns: Columns, later: Later) -> Visible:
    import psycopg

    place, own = sink.place, {str(writer.payload.get("writer")): writer for writer in decided}
    with psycopg.connect(sink.server.libpq()) as connection:
        connection.isolation_level, connection.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
        cursor: Any = connection.cursor()
        mine = f"SELECT sink FROM {place.markers} WHERE writer = ANY(%s)"
        cursor.execute(f"SELECT writer, xmin::text, age(xmin) FROM {place.markers} WHERE sink IN ({mine})", [[*own]])
        markers = cursor.fetchall()
        rows: Any = connection.cursor(name="penstock_audit")
        names = ", ".join('"' + field.name.replace('"', '""') + '"' for field in columns) or "1"
        oldest = max((age for name, _, age in markers if name in own), default=0)
        rows.execute(f"SELECT xmin::text, {names} FROM {place.target} WHERE age(xmin) <= {oldest}")
        by_xmin = _by_first(rows, columns, str(place))
    epochs: dict[str, set[int]] = {}
    for name, xmin, _ in markers:
        epochs.setdefault(xmin, set()).update({own[name].epoch} if name in own else ())
    if any(len(numbers) > 1 for numbers in epochs.values()):
        return Visible(unprovable="the table was restored from a copy: its rows are of one transaction")
    xmins = {name: xmin for name, xmin, _ in markers}
    visible = Visible(group=lambda writer: xmins.get(str(writer.payload.get("writer")), writer.payload.get("writer")))
    visible.parts = {xmin: part for xmin, part in by_xmin.items() if xmin in epochs}
    visible.others = [part for xmin, part in by_xmin.items() if xmin not in epochs]
    visible.gone = dict.fromkeys(own.keys() - xmins.keys(), "the sink has pruned its marker, which it keeps 64 epochs")
    return visible


def read_mysql(sink: Any, decided: Sequence[Decided], columns: Columns, later: Later) -> Visible:
    if min(writer.epoch for writer in decided):
        return Visible(unprovable="only whole tables can be compared, and the ledger has forgotten the first epochs")
    import pymysql

    database, table = sink.target
    names = ", ".join("`" + field.name.replace("`", "``") + "`" for field in columns) or "1"
    with closing(_connect_mysql(sink)) as connection:
        cursor: Any = connection.cursor(pymysql.cursors.SSCursor)
        cursor.execute(f"SELECT '', {names} FROM `{database}`.`{table}`")
        parts = _by_first(cursor, columns, f"{database}.{table}")
    if later():
        return Visible(unprovable="only whole tables can be compared, and an epoch is under way: stop the job first")
    exact = bool(columns) and not any(pa.types.is_float32(field.type) for field in columns)  # it shows six digits
    return Visible(parts=parts, group=lambda writer: "", trusted=exact)


def _connect_mysql(sink: Any) -> Any:
    import pymysql

    return pymysql.connect(
        host=sink.host, port=sink.port, user=sink.user, password=sink.password, database=sink.target[0],
        charset="utf8mb4", init_command="SET time_zone = '+00:00'", **sink.options,
    )  # fmt: skip


def _by_first(cursor: Any, columns: Columns, where: str) -> dict[Hashable, Part]:
    """The rows of a cursor, by their first column."""
    parts: dict[Hashable, Part] = {}
    while rows := cursor.fetchmany(_ROWS):
        groups: dict[Hashable, list[Sequence[Any]]] = {}
        for first, *values in rows:
            groups.setdefault(first, []).append(values)
        for key, group in groups.items():
            table = _table(zip(*group, strict=True), columns, len(group))
            part = part_of(table, f"{where}, xmin {key}" if key else where, columns)
            parts.setdefault(key, Part(part.where, part.layouts)).merge(part)
    return parts


def _table(values: Iterable[Sequence[Any]], columns: Columns, rows: int) -> pa.Table:
    try:
        return pa.table({field.name: pa.array(of) for field, of in zip(columns, values, strict=True)})
    except (ValueError, TypeError, pa.ArrowException):
        return pa.table({"": pa.nulls(rows)})  # they can only be counted


def rows_of(sink: Any) -> pa.Table | None:
    """Every visible row of a sink, of any writer; in the order of each partition for Kafka, and in none elsewhere.
    None for a kind of sink that has no reader. Columns of databases are text."""
    match type(sink).__name__:
        case "FileSink":
            names, read = _folder(sink)
            found = [_table_of_file(sink, read(name), name) for name in names]
        case "DeltaSink" | "IcebergSink" as kind:
            found = [read_file() for read_file in (_delta if kind == "DeltaSink" else _iceberg)(sink)[0].values()]
        case "KafkaSink":
            found = [rows_of_topic(sink)]
        case "PostgresSink":
            import psycopg

            found = [_selected(psycopg.connect(sink.server.libpq()), str(sink.place.target))]
        case "MySqlSink":
            found = [_selected(_connect_mysql(sink), ".".join(f"`{name}`" for name in sink.target))]
        case _:
            return None
    return pa.concat_tables([each for each in found if each is not None] or [pa.table({})], promote_options="default")


def _selected(connection: Any, table: str) -> pa.Table:
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        rows = [[None if value is None else str(value) for value in row] for row in cursor.fetchall()]
        return pa.table({column[0]: [row[at] for row in rows] for at, column in enumerate(cursor.description)})
