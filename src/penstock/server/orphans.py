"""Open transactions as the page shows them. The rules are `penstock.transactions`'; nothing here writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.transactions.ledgers import JobLedgers
from penstock.transactions.orphans import DecisionState, Orphan, Report, look


def transactions_at(folder: Path | None) -> dict[str, Any]:
    """Of a past run, by its ledger alone: its sinks are known to its program only."""
    if folder is None:
        return _unseen("the job's folder is not on this machine")
    try:
        return report_facts(look(JobLedgers.at(str(folder)), {}))
    except PenstockError as error:
        return _unseen(error.happened)


def report_facts(report: Report) -> dict[str, Any]:
    return {
        "transactions": [_facts(orphan) for orphan in report.orphans],
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
        "decision": orphan.decision.value,
        "age_seconds": None if orphan.started is None else round(max(0.0, time.time() - orphan.started), 3),
        "timeout_seconds": timeout,
        "holds_back": orphan.state == "open" and timeout is not None,
    }


def _state(orphan: Orphan) -> str:
    """Decided and open: prepared, and nothing but a commit can follow. Decided and not open: only asking for the commit
    proves how it ended."""
    if orphan.decision is not DecisionState.DECIDED:
        return "open"
    return "in doubt" if orphan.state == "not open" else "prepared"
