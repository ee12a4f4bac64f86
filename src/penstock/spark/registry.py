"""Columns in the wire format of Confluent's Schema Registry: Avro, Protobuf and JSON, read and written in the frame.

`WireFormat.java` does it in Spark's JVM, row by row. The driver asks the registry once per start of a query, after
recovery: for all versions of the subject that is read, and for the id of what is written. Both are kept with the query,
so that a start whose schemas are known needs no registry.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from penstock import errors
from penstock.checkpoint import layout
from penstock.secrets import without_secrets
from penstock.spark.parse import Json, parse
from penstock.spark.session import ensure_files
from penstock.storage.storage import AlreadyExists, Storage
from penstock.supply.jars import compiled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("penstock")


@dataclass(frozen=True, kw_only=True)
class Format:
    """`registry` is an address, or settings of confluent-kafka's `SchemaRegistryClient`: `url`, `basic.auth.user.info`,
    `bearer.auth.token`, `ssl.ca.location` and so on. `subject` is `<topic>-value` or `<topic>-key`.

    `schema` is what a source's rows become (the subject's newest version, asked when the source is read), and what a
    sink writes (what fits the frame). A sink registers it, unless `auto_register=False`."""

    kind: ClassVar[str]
    message: ClassVar[Any] = None
    registry: str | Mapping[str, Any] = field(repr=False)
    subject: str | None = None
    schema: str | None = None
    auto_register: bool = True

    def __getstate__(self) -> dict[str, Any]:
        return {}  # tasks need neither address nor password


class Avro(Format):
    """Avro. A row's own schema is resolved to the source's by Avro's rules."""

    kind = "AVRO"


class JsonSchema(Format):
    """JSON documents with a JSON Schema, of which types alone are looked at; a source parses as `penstock.parse`."""

    kind = "JSON"


@dataclass(frozen=True, kw_only=True)
class Protobuf(Format):
    """Protobuf. `message` is a class that protoc generated; `schema` its source, for readers of the registry."""

    kind = "PROTOBUF"
    message: Any  # type: ignore[misc]


def wire_columns(topic: str | None, key: Format | None, value: Format | None) -> list[WireColumn]:
    return [WireColumn(made, topic, name) for name, made in (("key", key), ("value", value)) if made is not None]


class WireColumn:
    """One column of a source's or a sink's frame. `resolve` comes before the first row."""

    def __init__(self, given: Format, topic: str | None, column: str) -> None:
        if topic is None and given.subject is None:
            happened = f"The subject of {column} is not known: there is no single topic."
            raise errors.ConfigurationError(happened, to_do="give the format a subject.")
        self._given, self._column, self._reads = given, column, False
        self._subject = given.subject or f"{topic}-{column}"
        self._java: Any = None
        self._stamped: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # the driver's alone

    def read(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame
        from pyspark.sql.types import StructType

        schema, self._reads = self._given.schema, True
        if schema is None and self._given.message is None:
            if (newest := self._ask(methodcaller("get_latest_version", self._subject))) is None:
                raise self._missing()
            schema = newest.schema.schema_str
        java, self._java = self._make(frame, lambda java: java.reader(self._given.kind, *self._text(schema)))
        rows = DataFrame(self._java.read(frame._jdf, self._column), frame.sparkSession)
        if self._given.kind != "JSON":
            return rows
        return parse(rows, Json(StructType.fromJson(json.loads(java.jsonType(schema)))), self._column)

    def write(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        given = (self._given.kind, *self._text(self._given.schema), frame._jdf, self._column)
        _, made = self._make(frame, lambda java: java.writer(*given))
        if self._java is None or self._java.schema() != made.schema():
            self._java = made
        return DataFrame(self._java.write(frame._jdf, self._column), frame.sparkSession)

    def resolve(self, kept: Storage | None, after: BaseException | None) -> None:
        """Learn ids from the registry; what is kept counts where it is away. `after`: why the last start ended."""
        if self._java is None or self._java is self._stamped:
            return
        names = [] if kept is None else [f"{layout.SCHEMAS}/{name}" for name in kept.list(layout.SCHEMAS)]
        bodies = [layout.unseal("schema", kept.read(name) or b"", name) for name in names] if kept else []
        known = {int(body["id"]): str(body["schema"]) for body in bodies if body["subject"] == self._subject}
        try:
            found = self._versions(after) if self._reads else self._registered()
        except errors.SystemUnavailable as error:
            if not (known if self._reads else self._java.schema() in known.values()):
                raise
            log.warning("%s The schemas that are kept with the query are used.", error.happened)
            found = {}
        for id_, schema in (known | found if self._reads else found or known).items():
            if self._reads:
                self._java.know(id_, schema)
            elif schema == self._java.schema():
                self._java.stamp(id_)
                self._stamped = self._java
        for id_, schema in found.items() - known.items():
            data = layout.seal("schema", {"subject": self._subject, "id": id_, "schema": schema})
            with suppress(AlreadyExists):
                if kept is not None:
                    kept.create(f"{layout.SCHEMAS}/{id_:010d}-{crc32(self._subject.encode()):08x}.json", data)

    def _versions(self, after: BaseException | None) -> dict[int, str]:
        """Of the subject, and of the row that ended the last start."""

        def ask(client: Any) -> dict[int, str]:
            versions = [client.get_version(self._subject, number) for number in client.get_versions(self._subject)]
            return {version.schema_id: version.schema.schema_str for version in versions}

        found = self._ask(ask) or {}
        wanted = re.findall(r"schema (\d+)", str(after)) if isinstance(after, errors.SchemaUnknown) else []
        for id_ in {int(number) for number in wanted} - found.keys():
            schema = self._ask(methodcaller("get_schema", id_))
            if schema is None:
                happened = f"A row for {self._subject} was written with schema {id_}, which the registry does not have."
                raise errors.DataError(happened, to_do="see that the source names the registry of the rows' writer.")
            found[id_] = schema.schema_str
        return found

    def _registered(self) -> dict[int, str]:
        written, text = self._java.schema(), self._given.schema
        if self._given.message is not None:
            written_as = text or base64.b64encode(self._given.message.DESCRIPTOR.file.serialized_pb).decode()
        schema = _library().Schema(written if self._given.message is None else written_as, self._given.kind)
        if (there := self._ask(methodcaller("lookup_schema", self._subject, schema))) is not None:
            return {there.schema_id: written}
        if not self._given.auto_register:
            raise self._missing()
        if self._ask(methodcaller("test_compatibility", self._subject, schema)) is False:
            raise self._incompatible("it is not compatible with the newest version")
        return {self._ask(methodcaller("register_schema", self._subject, schema)): written}

    def _text(self, schema: str | None) -> tuple[str | None, str | None]:
        """For Java: a schema, in Protobuf a set of files, and the name of a message."""
        if self._given.message is None:
            return schema, None
        from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

        def files(file: Any) -> list[Any]:
            return [*(one for imported in file.dependencies for one in files(imported)), file]

        message = self._given.message.DESCRIPTOR
        protos = [FileDescriptorProto.FromString(file.serialized_pb) for file in dict.fromkeys(files(message.file))]
        return base64.b64encode(FileDescriptorSet(file=protos).SerializeToString()).decode(), message.full_name

    def _make(self, frame: DataFrame, make: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Java's class, and what `make` made of it."""
        from py4j.protocol import Py4JJavaError

        ensure_files(frame.sparkSession, [compiled("penstock.spark", "WireFormat", [])])
        jvm: Any = frame.sparkSession._jvm
        try:
            return jvm.penstock.spark.WireFormat, make(jvm.penstock.spark.WireFormat)
        except Py4JJavaError as error:
            happened = f"The schema of {self._subject} does not fit: {error.java_exception.getMessage()}"[:500]
            raise errors.SchemaMismatch(happened, to_do="correct the schema, or the frame's columns.") from None

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """None: the registry has no such thing."""
        make = _library().SchemaRegistryClient
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each address, which may hold a password
        given = self._given.registry
        settings = {"url": given} if isinstance(given, str) else dict(given)
        try:
            with make({"max.retries": 2, "timeout": 10, **settings}) as client:
                return question(client)
        except Exception as error:
            status = getattr(error, "http_status_code", 500)  # other errors: it was not reached
            reason = without_secrets(str(error), {name: str(value) for name, value in settings.items()})[:300]
        if status == 404:
            return None
        if status in (401, 403):
            to_do = "check the credentials in the format's registry, and the rights on the subject."
            raise errors.AccessDenied(f"The schema registry refused {self._subject}: {reason}.", to_do=to_do)
        if status in (409, 422):
            raise self._incompatible(reason)
        raise errors.SystemUnavailable(
            f"The schema registry does not answer for {self._subject}: {reason}.",
            safe="what is decided is committed without it.",
            to_do="check its address and that it runs; the job tries again by its restart strategy.",
        )

    def _missing(self) -> errors.ConfigurationError:
        happened = f"The schema registry has no such schema under the subject {self._subject!r}."
        return errors.ConfigurationError(happened, to_do="register it, or correct the subject.")

    def _incompatible(self, reason: str) -> errors.SchemaIncompatible:
        happened = f"The schema registry does not take the sink's schema for {self._subject}: {reason}."
        to_do = "change the schema as the subject's compatibility allows, or use another subject or topic."
        return errors.SchemaIncompatible(happened, to_do=to_do)


def _library() -> Any:
    with errors.MissingExtra.named("A schema registry", "registry"):
        from confluent_kafka import schema_registry
    return schema_registry
