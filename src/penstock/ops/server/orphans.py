"""Transactions as the page shows them. The rules are `penstock.ops.transactions`'; nothing here writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.checkpoint.decision import Outcome
from penstock.engine.settlement import JobLedgers
from penstock.errors import PenstockError
from penstock.ops.transactions import DecisionState, Ended, Orphan, Report, ended, look, name_of


def transactions_at(folder: Path | None) -> dict[str, Any]:
    """Of a past run, by its ledger alone: its sinks are known to its program only."""
    if folder is None:
        return _unseen("the job's folder is not on this machine")
    try:
        ledgers = JobLedgers.at(str(folder))
        return report_facts(look(ledgers, {}), ended(ledgers))
    except PenstockError as error:
        return _unseen(error.happened)


def report_facts(report: Report, past: Sequence[Ended] = ()) -> dict[str, Any]:
    """`past`: those that have ended, by the ledger."""
    return {
        "transactions": [*(_facts(orphan) for orphan in report.orphans), *(_ended_facts(one) for one in past)],
        "unseen": [
            *({"query": query, "sink": sink, "why": why} for query, sink, why in report.unseen),
            *({"query": query, "sink": sink, "why": "it cannot say"} for query, sink in report.silent),
        ],
    }


def _unseen(why: str) -> dict[str, Any]:
    return {"transactions": [], "unseen": [{"query": None, "sink": None, "why": why}]}


def _facts(orphan: Orphan) -> dict[str, Any]:
    timeout = orphan.details.get("timeout_seconds")
    return {
        "query": orphan.query,
        "sink": orphan.sink,
        "id": orphan.id,
        "epoch": orphan.epoch,
        "generation": orphan.generation,
        "partition": orphan.partition,
        "rows": orphan.rows,
        "state": _state(orphan),
        "asked": orphan.state != "not asked",
        "decision": orphan.decision.value,
        "age_seconds": None if orphan.started is None else round(max(0.0, time.time() - orphan.started), 3),
        "timeout_seconds": timeout,
        "holds_back": orphan.state == "open" and timeout is not None,
    }


def _ended_facts(one: Ended) -> dict[str, Any]:
    return {
        "query": one.query,
        "sink": one.committable.sink,
        "id": name_of(one.committable),
        "epoch": one.epoch,
        "generation": one.generation,
        "partition": one.committable.writer,
        "rows": one.committable.rows,
        "state": "lost" if one.outcome is Outcome.LOST else "committed",
        "asked": False,
        "decision": DecisionState.DECIDED.value,
        "age_seconds": None,
        "timeout_seconds": None,
        "holds_back": False,
    }


def _state(orphan: Orphan) -> str:
    """Decided and open: prepared, and nothing but a commit can follow. Decided and not open: only asking for the commit
    proves how it ended."""
    if orphan.decision is not DecisionState.DECIDED:
        return "open"
    return "in doubt" if orphan.state == "not open" else "prepared"
