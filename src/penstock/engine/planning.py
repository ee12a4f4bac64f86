"""Which queries get their writer planned once, before they start; see `epoch.planned`. All others go the way that
always works: the writer is put behind the rows in each epoch.

Planned once is what `job.write` makes: one sink, no function of the user's in between. Beside that,

* the sink must say that its shape depends on the columns alone (`TwoPhaseSink.shapes_once`);
* a decided epoch that has to be replayed first must have been summed by the rule that its rows call for now;
* a query with state must lose no column on the way into its sink. Spark leaves out what nobody reads, down to what it
  keeps as state: with the writer in the plan, another state than before would fit the same checkpoint no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.contracts.sink import SinkScope
from penstock.engine.checksum import rule_for, rules_of, with_hashes
from penstock.engine.planned import Planned, planned_task
from penstock.engine.task import RESULT_SCHEMA, with_plain_names
from penstock.spark.operators import operators_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.contracts.plan import QueryPlan
    from penstock.contracts.sink import TwoPhaseSink
    from penstock.engine.protocol import Replay


def planned_once(job: str, plan: QueryPlan, generation: int, replay: Replay | None) -> tuple[DataFrame, Planned] | None:
    """The frame to start the query with, of one line for each writer, and who collects it; None where the query is not
    of that kind. `replay` is what recovery hands over to the first epoch."""
    from pyspark.errors import AnalysisException

    if not plan.as_it_is or len(plan.sinks) != 1:
        return None
    ((uid, sink),) = plan.sinks.items()
    if not shapes_once(sink):
        return None
    try:
        shaped = sink.shape(plan.frame)
        rule = rule_for(shaped)
        if replay is not None and rules_of(replay.decision.committables).get(uid, rule) != rule:
            return None
        if _loses_columns(plan.frame, shaped) and any(one["stateful"] for one in operators_of(plan.frame)):
            return None
        rows, names = with_plain_names(with_hashes(shaped, rule))
        task = planned_task(sink, SinkScope(job, uid, generation), rule=rule, names=names)
        return rows.mapInArrow(task, RESULT_SCHEMA), Planned(rule)
    except AnalysisException:
        return None  # the first epoch says what is wrong, as it does for every query


def shapes_once(sink: TwoPhaseSink) -> bool:
    """Whether the class says so that has the sink's `shape`, or one that inherits it."""
    for kind in type(sink).__mro__:
        if "shapes_once" in vars(kind):
            return bool(vars(kind)["shapes_once"])
        if "shape" in vars(kind):
            return False
    return False


def _loses_columns(frame: DataFrame, shaped: DataFrame) -> bool:
    kept = {name.lower() for name in shaped.columns}
    return any(name.lower() not in kept for name in frame.columns)
