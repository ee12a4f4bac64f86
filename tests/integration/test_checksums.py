"""The hash that proves a replay: what differs anywhere in a row is seen, what Spark does not promise is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.engine.checksum import FLAT, HASH_COLUMN, NESTED, rule_for, with_hashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Values of one type; no two of a line are the same.
UNLIKE = {
    "array<int>": ["array(1)", "array(1, null)", "array(null, 1)", "array()", "null", "array(null)", "array(1, 1)"],
    "array<array<int>>": [
        "array(array(1), array(2))", "array(array(1, 2))", "array(array(), array(1, 2))", "array(array(1, 2), array())",
        "array(null, array(1, 2))", "array(array(1), null, array(2))", "array()", "array(array())", "array(null)",
    ],
    "struct<a:int,b:int>": [
        "named_struct('a', 1, 'b', null)", "named_struct('a', null, 'b', 1)", "named_struct('a', null, 'b', null)",
        "null",
    ],
    "struct<a:struct<b:int,c:string>>": [
        "named_struct('a', named_struct('b', 1, 'c', null))", "named_struct('a', null)",
        "named_struct('a', named_struct('b', null, 'c', null))", "named_struct('a', named_struct('b', null, 'c', '1'))",
    ],
    "map<string,int>": ["map('a', 1)", "map('a', null)", "map()", "null", "map('a', 1, 'b', null)", "map('b', 1)"],
    "map<string,array<map<string,int>>>": [
        "map('a', array(map('x', 1)))", "map('a', array(map('x', null)))", "map('a', array(map('x', 1), null))",
        "map('a', array(map('x', 1), map()))", "map('a', null)",
    ],
    "array<struct<`a.b`:timestamp>>": [
        "array(named_struct('a.b', timestamp'2026-01-01 00:00:00.000001'))",
        "array(named_struct('a.b', timestamp'2026-01-01 00:00:00.000002'))",
        "array(named_struct('a.b', null))", "array(null)",
    ],
    "array<variant>": [
        "array(parse_json('1'))", "array(parse_json('1'), null)", "array(parse_json('{\"a\":null}'))", "array()",
    ],
}  # fmt: skip


def hash_of(session: SparkSession, kind: str, values: list[str], rule: int | None = None) -> list[int]:
    rows = session.sql(
        " UNION ALL ".join(f"SELECT {n} AS n, CAST({one} AS {kind}) AS v" for n, one in enumerate(values))
    )
    frame = rows.select("v", "n").orderBy("n").select("v")
    return [row[HASH_COLUMN] for row in with_hashes(frame, rule_for(frame) if rule is None else rule).collect()]


@pytest.mark.parametrize("kind", UNLIKE)
def test_whatever_differs_inside_a_column_is_seen(session: SparkSession, kind: str) -> None:
    found = hash_of(session, kind, UNLIKE[kind])
    assert len(set(found)) == len(UNLIKE[kind]), dict(zip(UNLIKE[kind], found, strict=True))


def test_the_order_of_a_map_is_not_seen(session: SparkSession) -> None:
    one, other = hash_of(session, "map<string,array<int>>", [
        "map('a', array(1, 2), 'b', array(3))", "map('b', array(3), 'a', array(1, 2))"
    ])  # fmt: skip
    assert one == other


def test_flat_rows_are_hashed_as_they_always_were_and_an_old_decision_by_its_own_rule(session: SparkSession) -> None:
    frame = session.sql("SELECT 1 AS a, CAST(null AS string) AS b")
    assert rule_for(frame) == FLAT
    [found], [expected] = with_hashes(frame, FLAT).collect(), session.sql("SELECT xxhash64(1, null, true)").collect()
    assert found[HASH_COLUMN] == expected[0]
    assert rule_for(session.sql("SELECT array(1) AS a")) == NESTED
    one, other = hash_of(session, "array<int>", ["array(1, null)", "array(1)"], FLAT)
    assert one == other, "which is why there is a second rule"
