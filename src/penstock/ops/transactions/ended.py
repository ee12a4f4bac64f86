"""Transactions that have ended, as the ledger knows them: those that the newest complete epochs have decided.

Of several decisions for a complete epoch the newest was carried out: whatever it names is committed. What only an
older one names was lost, and replaced by a replay, or decided by a run that counted no more. Nothing here asks another
system, and nothing writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.checkpoint.backlog import is_logged
from penstock.checkpoint.decision import Committable, Decision, Outcome
from penstock.engine.log_repair import query_of
from penstock.ops.transactions.ledgers import JobLedgers, QueryLedger

EPOCHS = 5
"""Of each query, so many complete epochs are looked at."""
MOST = 100
"""And so many transactions are listed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One that is `COMMITTED` or `LOST`, by the decision of `generation`."""

    query: str
    epoch: int
    generation: int
    committable: Committable
    outcome: Outcome


def ended(ledgers: JobLedgers, epochs: int = EPOCHS) -> list[Ended]:
    """Of each query the newest first. Those that went into the in-flight log are left out, which knows more of them."""
    found: list[Ended] = []
    for query in ledgers.queries:
        found += sorted(_of(query, epochs), key=lambda one: -one.epoch)[:MOST]
    return found


def _of(query: QueryLedger, epochs: int) -> Iterator[Ended]:
    complete, _ = query.log.next_epoch()
    decisions = query.ledger.decisions_since(max(0, complete - epochs), query_of(query.ledger, query.log))
    by_epoch: dict[int, list[Decision]] = {}
    for decision in decisions:
        if decision.id.epoch < complete:
            by_epoch.setdefault(decision.id.epoch, []).append(decision)
    for own in by_epoch.values():
        newest = max(own, key=lambda decision: decision.id)
        carried_out = [committable.payload for committable in newest.to_commit]
        for decision in own:
            for one in decision.to_commit:
                if is_logged(one) or (decision is not newest and one.payload in carried_out):
                    continue
                outcome = Outcome.COMMITTED if decision is newest else Outcome.LOST
                yield Ended(query.uid, decision.id.epoch, decision.id.generation, one, outcome)
