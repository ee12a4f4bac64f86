"""The last run of a job, as a restore finds it: fenced before anything is copied, and brought to its end where the copy
is of the job's own checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.layout import LEDGER
from penstock.checkpoint.ledger import Ledger
from penstock.engine import protocol
from penstock.engine.explain import explain_stop
from penstock.errors import ConfigurationError, SavepointError, TransactionRefused, WritersLost
from penstock.ops.transactions import settlement
from penstock.ops.transactions.ledgers import JobLedgers, QueryLedger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from penstock.engine.plan import QueryPlan
    from penstock.storage.tree import Tree


class LastRun:
    """See `savepoints.restore.Predecessor`. `folder` is the job's."""

    def __init__(self, folder: Tree, plans: Mapping[str, QueryPlan], spark: SparkSession) -> None:
        self._folder, self._plans, self._spark = folder, plans, spark
        self._generations = dict.fromkeys(plans, 0)

    def fence(self, *, finish: bool) -> None:
        """Register as the newest run of every query. `finish`: recover those of the program, as a start would, by the
        same protocol; raises `SavepointError` where that takes the plan, and so a start."""
        try:
            ledgers = JobLedgers.at(self._folder.location, self._spark)
        except ConfigurationError:
            return  # the job has never run
        for query in ledgers.queries:
            recovers = finish and query.uid in self._plans
            self._generations[query.uid] = (
                self._finish(ledgers, query) if recovers else settlement.fence(ledgers, query)
            )

    def refuse_superseded(self) -> None:
        """`Superseded` where a run has registered since: what it does is not in the copy."""
        for uid, own in self._generations.items():
            newest = Ledger(self._folder.at(f"{uid}/{LEDGER}").storage).newest_generation()
            if newest > own:
                raise explain_stop(protocol.Fenced(own, newest), uid, self._folder.location)

    def _finish(self, ledgers: JobLedgers, query: QueryLedger) -> int:
        try:
            return settlement.finish(ledgers, query, self._plans[query.uid].sinks)
        except (TransactionRefused, WritersLost) as error:
            raise SavepointError(
                f"The newest checkpoint of query {query.uid!r} cannot be finished without its plan: {error.happened}",
                safe="nothing was restored; what is decided is kept.",
                to_do="start the job once without -s and let it complete an epoch; then restore.",
            ) from error
