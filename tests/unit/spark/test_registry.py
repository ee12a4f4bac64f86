"""What a query learns from a schema registry and keeps: without Spark, and without a registry."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Avro, KafkaSink
from penstock.checkpoint import layout
from penstock.errors import DataError, SchemaUnknown, SystemUnavailable
from penstock.spark import registry
from penstock.spark.registry import WireColumn
from penstock.storage.local import LocalStorage

#: As version 1 wrote it. Later versions read it, too.
KEPT = (
    b'{"body":{"id":7,"schema":"\\"long\\"","subject":"t-value"},"format":"penstock/schema",'
    b'"sha256":"SUM","version":1}\n'
)


class Java:
    """What the class in the JVM hears."""

    def __init__(self, schema: str = '"long"') -> None:
        self.known: dict[int, str] = {}
        self.stamped: list[int] = []
        self._schema = schema

    def schema(self) -> str:
        return self._schema

    def know(self, id_: int, schema: str) -> None:
        self.known[id_] = schema

    def stamp(self, id_: int) -> None:
        self.stamped.append(id_)


def column(*, reads: bool, versions: Any, schemas: Any = None) -> tuple[WireColumn, Java]:
    made, java = WireColumn(Avro(registry="http://none"), "t", "value"), Java()
    made._java, made._reads = java, reads

    def ask(question: Any) -> Any:
        if isinstance(versions, Exception):
            raise versions
        return versions if schemas is None else schemas(question)

    made._ask = ask  # type: ignore[method-assign]
    return made, java


@pytest.fixture(autouse=True)
def _no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_library", lambda: SimpleNamespace(Schema=lambda text, kind: (text, kind)))


def away() -> SystemUnavailable:
    return SystemUnavailable("The registry is away.")


@pytest.fixture
def kept(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_versions_are_kept_and_serve_a_start_without_the_registry(kept: LocalStorage) -> None:
    first, java = column(reads=True, versions={1: '"int"', 7: '"long"'})
    first.resolve(kept, None)
    second, again = column(reads=True, versions=away())
    second.resolve(kept, None)
    assert java.known == again.known == {1: '"int"', 7: '"long"'}
    other = WireColumn(Avro(registry="http://none", subject="other"), None, "value")
    other._java, other._reads, other._ask = Java(), True, second._ask  # type: ignore[method-assign]
    with pytest.raises(SystemUnavailable):  # another subject's are none of its own
        other.resolve(kept, None)


def test_a_file_of_the_first_version_is_read(kept: LocalStorage) -> None:
    sealed = layout.seal("schema", {"subject": "t-value", "id": 7, "schema": '"long"'})
    sum_ = sealed.split(b'"sha256":"')[1][:64]
    kept.create(f"{layout.SCHEMAS}/0000000007-00000000.json", KEPT.replace(b"SUM", sum_))
    sink, java = column(reads=False, versions=away())
    sink.resolve(kept, None)
    assert java.stamped == [7]


def test_a_sink_whose_schema_is_new_waits_for_the_registry(kept: LocalStorage) -> None:
    sink, _ = column(reads=False, versions=away())
    with pytest.raises(SystemUnavailable):
        sink.resolve(kept, None)


def test_a_row_s_unknown_schema_is_asked_for_by_its_id(kept: LocalStorage) -> None:
    class Found:
        schema_str = '"string"'

    answers: list[Any] = [{1: '"long"'}, Found(), {1: '"long"'}, None]
    source, java = column(reads=True, versions=None, schemas=lambda _: answers.pop(0))
    after = SchemaUnknown("A row was written with schema 12, which was not there when the query started.")
    source.resolve(kept, after)
    assert java.known == {1: '"long"', 12: '"string"'}
    with pytest.raises(DataError, match="schema 12"):
        source.resolve(LocalStorage(Path(kept.location) / "empty"), after)


def test_tasks_get_neither_address_nor_password() -> None:
    door = {"url": "http://door", "basic.auth.user.info": "shop:hush-hush"}
    sink = KafkaSink("t", servers="h:1", value=Avro(registry=door))
    assert b"hush-hush" not in pickle.dumps(sink)
    assert "hush-hush" not in repr(sink.value)
