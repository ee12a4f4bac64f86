"""The coordinator that a query's settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.checkpoint.layout import INFLIGHT, LEDGER
from penstock.checkpoint.open import ledger_at, spark_log_at
from penstock.engine.coordinator import Coordinator
from penstock.engine.inflight import InFlight
from penstock.spark.query import RunningQuery, current_execution
from penstock.storage.open import storage_at
from penstock.supply.versions import version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.ledger import Ledger
    from penstock.config import Checkpoints
    from penstock.contracts.plan import QueryPlan
    from penstock.events import Events


def coordinator_for(
    job: str,
    plan: QueryPlan,
    folder: str,
    history: str,
    spark: SparkSession,
    checkpoints: Checkpoints,
    events: Events,
    **more: Any,
) -> Coordinator:
    """One start's coordinator, not yet recovered. Spark's checkpoint is `history`, in the query's folder."""
    session = plan.frame.sparkSession  # the one that starts the query, and so knows it
    running = RunningQuery(session, lambda: current_execution(session))
    retained = max(checkpoints.retained, checkpoints.num_retained)
    ledger = ledger_at(f"{folder}/{LEDGER}", spark, retained=retained, trusted=checkpoints.trusted_schemes)
    return Coordinator(
        job=job,
        query=plan.uid,
        sinks=plan.sinks,
        sources=list(plan.sources),
        ledger=ledger,
        log=spark_log_at(f"{folder}/{history}", spark, known=version_of(spark).log_known),
        events=events,
        body=plan.body,
        executed_plan=running.executed_plan,
        running=running,
        checkpoints=checkpoints,
        inflight=_inflight(job, plan, folder, spark, checkpoints, events, ledger, retained),
        **more,
    )


def _inflight(
    job: str,
    plan: QueryPlan,
    folder: str,
    spark: SparkSession,
    checkpoints: Checkpoints,
    events: Events,
    ledger: Ledger,
    retained: int,
) -> InFlight | None:
    """None where no epoch needs the log and no earlier run has left one."""
    location = f"{folder}/{INFLIGHT}"
    storage = storage_at(location, spark)
    if not checkpoints.logged and not storage.list(""):
        return None
    return InFlight(
        job=job,
        query=plan.uid,
        sinks=plan.sinks,
        location=location,
        storage=storage,
        ledger=ledger,
        ledger_of=lambda where: ledger_at(where, spark, retained=retained, trusted=checkpoints.trusted_schemes),
        events=events,
        checkpoints=checkpoints,
    )
