"""The operators of a query for people, from Spark's analysed plan. Runs no Spark job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NODE = re.compile(r"^[\s:+\-|*~]*(?:\(\d+\)\s*)?'?(?P<name>[A-Z]\w*)(?P<rest>.*)$")
_HIDDEN = ("SubqueryAlias", "View", "LocalRelation", "LogicalRDD")
_LEAVES = re.compile(r"^(Streaming\w*Relation\w*|\w*Relation(V2)?|Range)$")
_STATEFUL = re.compile(r"^(Aggregate|Deduplicate\w*|\w*WithState\w*|Distinct|GlobalLimit)$")
MOST = 50


def operators_of(frame: DataFrame) -> list[dict[str, Any]]:
    """From the sources on: each operator's name, and whether it keeps state. A join keeps state where both of its sides
    are streams."""
    tree: Any = frame._jdf.queryExecution().analyzed()
    streams = sum(leaf.isStreaming() for leaf in _each(tree.collectLeaves()))
    found = []
    for line in str(tree.toString()).splitlines():
        match = _NODE.match(line)
        if match is None or match["name"] in _HIDDEN or _LEAVES.match(match["name"]):
            continue
        name = match["name"]
        stateful = bool(_STATEFUL.match(name)) or (name == "Join" and streams > 1)
        found.append({"name": f"Join{_kind(match['rest'])}" if name == "Join" else name, "stateful": stateful})
    return found[::-1][:MOST]


def _kind(rest: str) -> str:
    word = rest.split()[:1]
    return f" {word[0].rstrip(',')}" if word else ""


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
