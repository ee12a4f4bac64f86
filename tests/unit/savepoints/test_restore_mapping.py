"""What of a savepoint goes where in a program: kept, new, left behind by permission, or an error that says what."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import NotRestorable
from penstock.savepoints.restorable import Fate, ProgramQuery, RestoreMapping, compare
from penstock.savepoints.savepoint import Kind, SavedQuery, SavedSink, Savepoint


def schema(**columns: str) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in columns.items()]
    return {"type": "struct", "fields": fields}


def operator(number: int, name: str = "stateStoreSave", key: dict[str, Any] | None = None) -> dict[str, Any]:
    store = {"name": "default", "partitions": 2, "key_schema": key or schema(account="string"), "value_schema": None}
    return {"id": number, "name": name, "stores": [store], "partitions": 2}


def saved(*operators: dict[str, Any], sources: tuple[str | None, ...] = ("orders",)) -> Savepoint:
    query = SavedQuery(
        12, "id", 1, sources, {"totals": SavedSink("KafkaSink", "there", "p")}, 0, "hashmap", 2, "update", operators
    )
    return Savepoint("3f2a9c41d07e", Kind.NATIVE, "payments", 0.0, "0.2.0", "4.2.0", {"totals": query}, {})


def program(
    *operators: dict[str, Any], sources: tuple[str | None, ...] = ("orders",), **more: Any
) -> dict[str, ProgramQuery]:
    return {"totals": ProgramQuery(sources, ["totals"], list(operators), **more)}


def fates(found: RestoreMapping) -> dict[str, str]:
    return {line.what: line.fate.value for line in found.lines}


def test_the_same_program_keeps_everything() -> None:
    found = compare(saved(operator(0)), program(operator(0)), allow=False)
    found.require("there")
    assert set(fates(found).values()) == {Fate.KEPT}
    assert found.queries["totals"].sources == [0]
    assert found.queries["totals"].operators is None


def test_sources_are_known_by_their_uids_not_their_order() -> None:
    before = saved(operator(0), sources=("orders", "payments"))
    found = compare(before, program(operator(0), sources=("payments", "refunds", "orders")), allow=False)
    found.require("there")
    assert found.queries["totals"].sources == [1, None, 0]
    assert fates(found)["source refunds"] == Fate.NEW


def test_a_source_used_twice_has_two_positions() -> None:
    found = compare(saved(sources=("orders", "orders")), program(sources=("orders", "orders")), allow=False)
    found.require("there")
    assert found.queries["totals"].sources == [0, 1]


def test_a_source_used_twice_keeps_the_order_of_all() -> None:
    before = saved(sources=("orders", "orders", "payments"))
    with pytest.raises(NotRestorable, match="uses a source twice"):
        compare(before, program(sources=("payments", "orders", "orders")), allow=False).require("there")


def test_a_source_that_is_gone_needs_permission() -> None:
    before, now = saved(sources=("orders", "payments")), program(sources=("payments",))
    with pytest.raises(NotRestorable, match="source orders is in the savepoint and not in the program"):
        compare(before, now, allow=False).require("there")
    found = compare(before, now, allow=True)
    found.require("there")
    assert fates(found)["source orders"] == Fate.LEFT
    assert found.queries["totals"].sources == [1]


def test_a_query_that_is_gone_needs_permission_and_a_new_one_none() -> None:
    now = {"other": ProgramQuery(["orders"], ["other"], [])}
    with pytest.raises(NotRestorable, match="query is in the savepoint"):
        compare(saved(), now, allow=False).require("there")
    found = compare(saved(), now, allow=True)
    found.require("there")
    assert not found.queries


def test_state_under_other_columns_says_which() -> None:
    now = program(operator(0, key=schema(account="string", country="string")))
    with pytest.raises(NotRestorable) as refused:
        compare(saved(operator(0)), now, allow=True).require("there")
    assert "(account string) → (account string, country string)" in str(refused.value)


def test_a_renamed_column_of_the_same_type_is_kept() -> None:
    found = compare(saved(operator(0)), program(operator(0, key=schema(konto="string"))), allow=False)
    found.require("there")


def test_an_operation_that_is_new_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotRestorable, match="Put it into a query of its own"):
        compare(saved(operator(0)), program(operator(0), operator(1, "dedupe")), allow=True).require("there")


def test_operators_are_found_again_when_one_before_them_is_gone() -> None:
    before = saved(operator(0, "dedupe"), operator(1))
    with pytest.raises(NotRestorable, match="bring the operation back"):
        compare(before, program(operator(0)), allow=False).require("there")
    found = compare(before, program(operator(0)), allow=True)
    found.require("there")
    assert found.queries["totals"].operators == [1]


def test_parallelism_and_backend_change_only_where_there_is_state() -> None:
    asked: dict[str, Any] = {"partitions": 7, "backend": "rocksdb"}
    found = compare(saved(operator(0)), program(operator(0), **asked), allow=False).queries["totals"]
    assert (found.partitions, found.backend) == (7, "rocksdb")
    found = compare(saved(), program(**asked), allow=False).queries["totals"]
    assert (found.partitions, found.backend) == (None, None)
    found = compare(saved(operator(0)), program(operator(0), partitions=2, backend="hashmap"), allow=False).queries[
        "totals"
    ]
    assert (found.partitions, found.backend) == (None, None)


def test_a_plan_that_cannot_be_looked_at_is_left_to_spark() -> None:
    now = {"totals": ProgramQuery(["orders"], ["totals"], None)}
    found = compare(saved(operator(0)), now, allow=False)
    found.require("there")
    assert found.queries["totals"].operators is None
