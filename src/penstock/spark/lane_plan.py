"""Carries source positions through the plan of a real-time query, and refuses plans that cannot have lanes.

A lane needs the source position of every row. Three columns are added over each Kafka stream of the analysed plan, and
every operator above hands them on; the user's program changes nothing. Operators that keep state, or move rows between
partitions, have no such columns to hand on, and are refused before anything starts. What is accepted here is less than
what Spark's real-time mode accepts; its own check stays on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.contracts.sink import TRACE
from penstock.contracts.source import QueryPlan
from penstock.errors import RealTimeRefused
from penstock.spark.query import analysed, columns_of, items, streams_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The columns behind the user's, of type string, int and bigint.
POSITIONS = ("__penstock_topic", "__penstock_partition", "__penstock_offset")

#: Operators whose output is their input's, and more columns perhaps.
_PASSING = {"Filter", "EventTimeWatermark", "Generate", "ResolvedHint", "CollectMetrics", "PipeOperator"}
_ROW_BY_ROW = {"Project", "View", "SubqueryAlias", "Union", *_PASSING} - {"Generate", "PipeOperator"}
#: Joins that keep the streaming side's rows, by the side that it is on.
_JOINS = ({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}, {"Inner", "Cross", "RightOuter"})
_SEMI = {"LeftSemi", "LeftAnti"}

_STATE = "keeps state between rows"
_MOVES = "moves rows between partitions"
_PYTHON = "runs Python, and Spark's real-time mode runs none"
_TOO_EARLY = f"{_STATE}: Spark 4.3 runs it in real-time mode, but shows results before its state is durable"
#: The operators as a user knows them, and what is wrong with them.
_REFUSED: Mapping[str, tuple[str, str]] = {
    "Aggregate": ("groupBy (an aggregation)", _TOO_EARLY),
    "Distinct": ("distinct", _TOO_EARLY),
    "Deduplicate": ("dropDuplicates", _TOO_EARLY),
    "DeduplicateWithinWatermark": ("dropDuplicatesWithinWatermark", _STATE),
    "Intersect": ("intersect", _STATE),
    "Except": ("subtract", _STATE),
    "Window": ("a window function (OVER)", _STATE),
    "GlobalLimit": ("limit", _STATE),
    "LocalLimit": ("limit", _STATE),
    "Offset": ("offset", _STATE),
    "TransformWithState": ("transformWithState", _STATE),
    "TransformWithStateInPySpark": ("transformWithState", _STATE),
    "FlatMapGroupsInPandasWithState": ("applyInPandasWithState", _STATE),
    "FlatMapGroupsInPandas": ("applyInPandas", _STATE),
    "FlatMapGroupsInArrow": ("applyInArrow", _STATE),
    "RepartitionByExpression": ("repartition", _MOVES),
    "RebalancePartitions": ("rebalance", _MOVES),
    "Sort": ("a sort", _MOVES),
    "MapInArrow": ("mapInArrow", _PYTHON),
    "MapInPandas": ("mapInPandas", _PYTHON),
    "Sample": ("sample", "is not among the operators of Spark's real-time mode"),
}
#: What Spark may plan between source and sink; fewer than in its own list.
_PHYSICAL = {"Project", "Filter", "Generate", "Expand", "Union", "CollectMetrics", "BroadcastHashJoin", "Range"}
_MANY = (1 << 50) + 21  # rows of the stand-in for a stream: too many to broadcast, and no number of a user's


@dataclass(frozen=True, slots=True)
class LanePlan:
    """`frame` has the columns of the sink's shape, then `POSITIONS`. `uids` are its sources in the order of Spark's
    progress. `multiplies`: one source row may give several rows."""

    frame: DataFrame
    uids: Sequence[str]
    multiplies: bool


def lane_plan(frame: DataFrame, plan: QueryPlan, starting: Mapping[str, Any] | None = None) -> LanePlan:
    """`frame`, which is the sink's shape of `plan`'s frame, with positions. With `starting` it reads from there: for
    each source's uid the next offset of every partition, by topic. `RealTimeRefused` for a plan without lanes; nothing
    was started then."""
    if plan.output_mode == "complete":
        raise refusal(plan.uid, "output_mode='complete'", "shows all results again and again, and so keeps them")
    spark: Any = frame.sparkSession
    uids = {columns_of(stream): uid for stream, uid in zip(streams_of(frame), plan.positions, strict=True)}
    options: dict[str, dict[str, str]] = {}

    def stream(leaf: Any) -> Any:
        uid = uids.get(columns_of(leaf))
        if uid is None:
            raise refusal(plan.uid, "a stream that job.read(KafkaSource(…)) did not make", "has no lanes")
        if uid in options:
            raise refusal(plan.uid, f"source {uid!r} twice", "would have two rows for one position")
        options[uid] = dict(plan.sources[uid].real_time_options(uid))
        if starting is not None:
            options[uid]["startingOffsets"] = json.dumps(starting[uid])
        return _with_positions(spark, _with_options(spark, leaf, options[uid]))

    # A query in SQL's `WITH` is analysed apart; here it goes where it is used.
    inlined = spark._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(analysed(frame))
    walk = _Walk(spark, plan.uid, stream)
    carried = walk.run(inlined)
    _refuse_shared_topics(plan.uid, options, starting or {})
    if walk.joins or inlined.containsPattern(walk.patterns.PLAN_EXPRESSION()):
        stand_in = _Walk(spark, plan.uid, lambda leaf: _with_positions(spark, _stand_in(spark, leaf)))
        _refuse_physical(plan.uid, _frame(spark, stand_in.run(inlined))._jdf.queryExecution().sparkPlan())
    if walk.multiplies and (what := walk.changes(inlined)):
        happened = f"{what} in a plan in which one source row may give several rows (explode, join)"
        raise refusal(plan.uid, happened, "gives other rows in a restart, when some of them may be visible already")
    return LanePlan(_frame(spark, carried), tuple(options), walk.multiplies)


def refusal(query: str, what: str, why: str) -> RealTimeRefused:
    return RealTimeRefused(
        f"Query {query!r} has latency set and {what}, which {why}.",
        to_do="leave latency out: the micro-batch mode takes it. Or write the query with SQL expressions alone: select,"
        " where, explode, union, a broadcast join with a static frame.",
    )


class _Walk:
    """One walk over an analysed plan. `stream` gives for a streaming leaf the plan to put there: the leaf's columns,
    with positions as the last `carried`."""

    def __init__(self, spark: Any, query: str, stream: Callable[[Any], Any]) -> None:
        self._query, self._stream, self.carried, self.real_time = query, stream, len(POSITIONS), True
        self._seq = spark._jvm.PythonUtils.toSeq
        self._logical = spark._jvm.org.apache.spark.sql.catalyst.plans.logical
        self.patterns = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._nodes: list[Any] = []
        self.joins = self.multiplies = False

    def run(self, plan: Any) -> Any:
        """`plan`, with positions behind its columns."""
        return self._aligned(plan, *self._carry(plan))

    def _aligned(self, before: Any, plan: Any, positions: list[Any]) -> Any:
        return self._logical.Project(self._seq([*items(before.output()), *positions]), plan)

    def _carry(self, node: Any) -> tuple[Any, list[Any]]:
        """The node with positions in its output, and these three attributes."""
        name = str(node.getClass().getSimpleName())
        children = items(node.children())
        self._nodes.append(node)
        if not children:
            plan = self._stream(node)
            return plan, items(plan.output())[-self.carried :]
        if name == "Join":
            return self._join(node, children)
        if name == "Union":
            return self._union(node, children)
        if name not in {"Project", "View", "Expand", "SubqueryAlias", *_PASSING}:
            raise self._refused(node, name)
        self._refuse_python(node)
        child, positions = self._carry(children[0])
        self.multiplies |= name in ("Generate", "Expand")
        match name:
            case "View":  # its output is its child's
                return child, positions
            case "Project":
                return self._logical.Project(self._seq([*items(node.projectList()), *positions]), child), positions
            case "Expand":
                rows = [self._seq([*items(row), *positions]) for row in items(node.projections())]
                output = self._seq([*items(node.output()), *positions])
                return self._logical.Expand(self._seq(rows), output, child), positions
        return node.withNewChildren(self._seq([child])), positions

    def _join(self, node: Any, children: list[Any]) -> tuple[Any, list[Any]]:
        streams = [child.isStreaming() for child in children]
        kind = str(node.joinType().toString())
        if all(streams):
            raise refusal(self._query, "a join of two streams", _STATE)
        side = streams.index(True)
        if kind not in _JOINS[side]:
            raise refusal(self._query, f"a {kind} join with the stream on the {('left', 'right')[side]}", _STATE)
        self._refuse_python(node)
        self.joins, self.multiplies = True, self.multiplies or kind not in _SEMI
        children[side], positions = self._carry(children[side])
        return node.withNewChildren(self._seq(children)), positions

    def _union(self, node: Any, children: list[Any]) -> tuple[Any, list[Any]]:
        if not all(child.isStreaming() for child in children):
            raise refusal(self._query, "a union with a frame that does not stream", "has no position for its rows")
        union = node.withNewChildren(self._seq([self._aligned(child, *self._carry(child)) for child in children]))
        return union, items(union.output())[-self.carried :]

    def _refused(self, node: Any, name: str) -> RealTimeRefused:
        if name == "Repartition":
            return refusal(self._query, "repartition" if node.shuffle() else "coalesce", _MOVES)
        what, why = _REFUSED.get(name, (f"the operator {name}", "real-time queries cannot have"))
        if why is _PYTHON:
            what += f" ({node.functionExpr().name()})"
        return refusal(self._query, what, why)

    def _refuse_python(self, node: Any) -> None:
        udf = _find(node, lambda part: part.containsPattern(self.patterns.PYTHON_UDF()))
        if udf is not None and self.real_time:
            raise refusal(self._query, f"the Python function {udf.name()}", _PYTHON)

    def changes(self, plan: Any) -> str:
        """What in the plan gives other results when it is computed again; empty where there is nothing."""
        for changing in (
            lambda part: not part.deterministic(),
            lambda part: part.containsPattern(self.patterns.CURRENT_LIKE()),
        ):
            if changing(plan):
                found = next(filter(None, (_find(node, changing) for node in self._nodes)), None)
                return "a joined frame that is not deterministic" if found is None else f"{found.prettyName()}()"
        return ""


def traced(frame: DataFrame, topic: str | None) -> DataFrame:
    """A stream, or what was made of an epoch of a traced one, with `TRACE` behind its columns, if its rows are single
    source rows: Kafka's partition, shifted by 48 bits, and offset; and a file or a topic, null where all have one."""
    from pyspark.sql import functions as f

    spark = frame.sparkSession

    def stream(leaf: Any) -> Any:
        rows = _frame(spark, leaf)
        if tuple(rows.columns[-len(TRACE) :]) == TRACE:
            return leaf
        at, name = f.lit(None).cast("bigint"), f.input_file_name()
        if {"topic", "partition", "offset"} <= set(rows.columns) and _kind(leaf) == "StreamingRelationV2":
            at = f.shiftleft(f.col("partition").cast("bigint"), 48).bitwiseOR(f.col("offset"))
            name = f.col("topic") if topic is None else f.lit(None).cast("string")
        return analysed(rows.select("*", at.alias(TRACE[0]), name.alias(TRACE[1])))

    try:
        walk = _Walk(spark, "", stream)
        walk.carried, walk.real_time = len(TRACE), False
        return _frame(spark, walk.run(analysed(frame)))
    except RealTimeRefused:  # it aggregates, joins two streams, or hands rows to a function as it likes
        return frame


#: Expressions that give other values when they are computed again, and depend on nothing that is read.
_CHANGING = {
    "Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle", "MonotonicallyIncreasingID", "SparkPartitionID",
    "CallMethodViaReflection", "CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp", "PythonUDF",
}  # fmt: skip
_LOSING = {"failOnDataLoss": "false", "ignoreMissingFiles": "true", "ignoreCorruptFiles": "true"}


def changing_functions(frame: DataFrame) -> list[str]:
    """What in the plan is a clock, chance, or declared not deterministic by the program."""
    jvm: Any = frame.sparkSession._jvm
    clock = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    changing = (each for each in _expressions(frame) if not each.deterministic() or each.containsPattern(clock))
    return list(dict.fromkeys(f"{each.prettyName()}()" for each in changing if _kind(each) in _CHANGING))


def python_functions(frame: DataFrame) -> list[str]:
    """The names of the program's functions in the plan."""
    found = (each.name() for each in _expressions(frame) if _kind(each) == "PythonUDF")
    return list(dict.fromkeys(map(str, found)))


def works_on_batches(frame: DataFrame) -> bool:
    """Whether a function of the program gets several rows at once, and may depend on which."""
    return "MapIn" in str(analysed(frame).toString())


def losing_options(frame: DataFrame) -> list[tuple[str, str]]:
    """Options of the plan's streams that let Spark go on past rows that it should have read."""
    leaves = [leaf for leaf in streams_of(frame) if _kind(leaf) == "StreamingRelationV2"]
    found = [(name, str(leaf.extraOptions().get(name)).lower()) for leaf in leaves for name in _LOSING]
    return [(name, value) for name, value in found if value == _LOSING[name]]


def row_changes(frame: DataFrame) -> tuple[str, bool]:
    """The first operator that makes no row, or several, of one; and whether one leaves rows out."""
    nodes, filters = [analysed(frame)], False
    while nodes:
        node = nodes.pop()
        children, name = items(node.children()), _kind(node)
        if children and name not in _ROW_BY_ROW:
            return f"{name} changes how many rows there are", filters
        nodes, filters = nodes + children, filters or name == "Filter"
    return "", filters


def _expressions(frame: DataFrame) -> Iterator[Any]:
    plans, parts = [analysed(frame)], list[Any]()
    while plans:
        plan = plans.pop()
        plans += items(plan.children())
        parts += items(plan.expressions())
    while parts:
        part = parts.pop()
        parts += items(part.children())
        yield part


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _find(node: Any, wanted: Callable[[Any], bool]) -> Any:
    """The innermost expression of an operator that is `wanted`, None where there is none. A part is wanted where
    something in it is."""
    if not wanted(node):
        return None
    parts = items(node.expressions())
    found = None
    while matching := [part for part in parts if wanted(part)]:
        found = matching[0]
        parts = items(found.children())
    return found


def _frame(spark: Any, plan: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(rows, spark)


def _with_options(spark: Any, leaf: Any, options: Mapping[str, str]) -> Any:
    """The stream, read with other options, with the same columns."""
    java = spark._jvm.java.util.HashMap()
    for key, value in options.items():
        java.put(key, value)
    arguments = spark.sparkContext._gateway.new_array(spark._jvm.Object, leaf.productArity())
    for index in range(leaf.productArity()):
        arguments[index] = leaf.productElement(index)
        if leaf.productElementName(index) == "extraOptions":
            arguments[index] = spark._jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(java)
    return leaf.makeCopy(arguments)


def _with_positions(spark: Any, plan: Any) -> Any:
    from pyspark.sql import functions as f

    columns = [f.col(name.removeprefix("__penstock_")).alias(name) for name in POSITIONS]
    return analysed(_frame(spark, plan).select("*", *columns))


def _stand_in(spark: Any, leaf: Any) -> Any:
    """A plan with the stream's columns over rows that Spark plans like a stream's, and need no broker."""
    from pyspark.sql import functions as f

    java, attributes = spark._jvm, items(leaf.output())
    text = f.col("id").cast("string")
    kinds = [str(attribute.dataType().sql()) for attribute in attributes]
    columns = [f.from_json(text, kind) if "<" in kind else text.cast(kind) for kind in kinds]
    rows = analysed(spark.range(_MANY).select(*columns))
    nothing, seq = getattr(java.scala, "None$").__getattr__("MODULE$"), java.PythonUtils.toSeq
    renamed = [
        java.org.apache.spark.sql.catalyst.expressions.Alias(
            column, attribute.name(), attribute.exprId(), attribute.qualifier(), nothing, seq([])
        )
        for column, attribute in zip(items(rows.output()), attributes, strict=True)
    ]
    return java.org.apache.spark.sql.catalyst.plans.logical.Project(seq(renamed), rows)


def _refuse_physical(query: str, plan: Any) -> None:
    """Refuse what Spark would plan between a stream and the sink and not run: it would notice after the start."""
    for node in _streaming_path(plan):
        name = str(node.getClass().getSimpleName()).removesuffix("Exec")
        if name not in _PHYSICAL:
            what = "a join that Spark cannot do by a broadcast and a hash" if "Join" in name else "a subquery"
            raise refusal(query, what, f"it plans as {name}; join with broadcast(frame), on equal values")


def _streaming_path(plan: Any) -> Iterator[Any]:
    children = items(plan.children())
    below = [node for child in children for node in _streaming_path(child)]
    if below or (str(plan.getClass().getSimpleName()) == "RangeExec" and int(plan.numElements()) == _MANY):
        yield plan
        yield from below


def _refuse_shared_topics(query: str, options: Mapping[str, Mapping[str, str]], starting: Mapping[str, Any]) -> None:
    """A lane is known by topic and partition alone. Which topics a pattern matches is known when the query starts."""
    readers: dict[str, str] = {}
    for uid, settings in options.items():
        for topic in {*settings.get("subscribe", "").split(","), *starting.get(uid, ())} - {""}:
            if readers.setdefault(topic, uid) != uid:
                what = f"the sources {readers[topic]!r} and {uid!r} over one topic, {topic}"
                raise refusal(query, what, "would have two rows for one position")
