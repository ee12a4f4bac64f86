"""Runs that never ran, told of as the server tells of real ones: for the page's tests, pictures and benchmark."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ERROR = {
    "error": "WritersLost",
    "happened": "2 of 4 writers of epoch 311 are lost: Kafka has ended their transactions.",
    "safe": "nothing of the epoch was made visible twice; the input positions are as they were.",
    "to_do": "start the job: it rewrites just these two, and proves that they are the same rows.",
}
MARKUP = '<img src=x onerror="document.title=1"><b>bold</b>'
INTERVAL_MS = 5000


@dataclass
class Run:
    """One run and all that can be asked of it. Tests change it while a page looks at it."""

    id: str
    name: str
    start: int
    state: str = "RUNNING"
    end: int | None = None
    epochs: int = 120
    restarts: int = 0
    savepoint: str | None = None
    error: Json | None = None
    program: str | None = "/srv/jobs/payments.py"
    phase: str = "prepare"
    transactions: list[Json] = field(default_factory=list)
    exceptions: list[Json] = field(default_factory=list)
    savepoints: list[Json] = field(default_factory=list)
    audit: Json | None = None
    weakest: Json | None = None
    queries: tuple[str, ...] = ("alerts",)
    now: int = 0

    def __post_init__(self) -> None:
        self._made: dict[tuple[str, int], Json] = {}
        self._first = (self.end or self.now) - self.epochs * INTERVAL_MS  # when the first epoch was opened

    @property
    def live(self) -> bool:
        return self.end is None

    def summary(self) -> Json:
        last = self.end if self.end is not None else self.now
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "start": self.start,
            "end": self.end,
            "duration": max(0, last - self.start),
            "restarts": self.restarts,
            "savepoint": self.savepoint,
            "error": self.error,
            "address": "http://127.0.0.1:45931" if self.live else None,
            "live": self.live,
            "program": self.program,
        }

    def detail(self) -> Json:
        return {
            "run": self.summary(),
            "queries": [self._query(uid) for uid in self.queries],
            "weakest": self.weakest,
            "spark_ui": "http://127.0.0.1:4040" if self.live else None,
        }

    def epoch(self, query: str, number: int) -> Json:
        if (query, number) not in self._made:
            self._made[query, number] = self._make(query, number)
        return self._made[query, number]

    def _make(self, query: str, number: int) -> Json:
        chance = random.Random(number if query == self.queries[0] else f"{query} {number}")
        share = 1 if query == self.queries[0] else 0.25  # of the rows of the first
        phases = {
            "read_ms": 180 + chance.random() * 120,
            "prepare_ms": 240 + chance.random() * 400,
            "decide_ms": 4 + chance.random() * 6,
            "commit_ms": 9 + chance.random() * 20,
        }
        if number % 37 == 0:
            phases["prepare_ms"] *= 3
        failed = number % 53 == 40
        opened = self._opened(number)
        total = sum(phases.values())
        rows = int(share * (20_000 + 6_000 * math.sin(number / 9) + chance.random() * 2_000))
        return {
            "query": query,
            "epoch": number,
            "generation": 3,
            "outcome": "failed" if failed else "complete",
            "mode": "unaligned" if number % 37 == 0 else "aligned",
            "opened": opened,
            "ended": opened + total,
            "phases": phases,
            "total_ms": round(total, 1),
            "rows": 0 if failed else rows,
            "bytes": rows * 112,
            "sinks": [{"sink": sink, "rows": rows, "writers": 4, "bytes": rows * 112} for sink in self._sinks(query)],
            "state_rows": int(share * (40_000 + number * 30)),
            "state_bytes": int(share * (9_000_000 + number * 7_000)),
            "inflight_bytes": 4_000_000 if number % 37 == 0 else 0,
            "slowest": "payments-2",
            "skew": 2.4,
            "why": "The sink did not take it within the checkpoint timeout." if failed else None,
        }

    def series(self, query: str, points: int) -> Json:
        step = max(1, math.ceil(self.epochs / max(1, points)))
        chosen = [self.epoch(query, number) for number in range(1, self.epochs + 1, step)]
        names = ("total_ms", "rows", "state_bytes", "inflight_bytes")
        return {
            "time": [one["opened"] for one in chosen],
            "commit_ms": [one["phases"]["commit_ms"] for one in chosen],
            **{name: [one[name] for one in chosen] for name in names},
        }

    def page(self, query: str, before: int | None, limit: int) -> Json:
        newest = min(self.epochs, (before or self.epochs + 1) - 1)
        oldest = max(1, newest - limit + 1)
        return {
            "epochs": [self.epoch(query, number) for number in range(newest, oldest - 1, -1)],
            "more": oldest > 1,
        }

    def alignment(self) -> Json:
        reached = [310.0, 190.5, 160.2, 140.9]
        return {
            "partitions": [
                {
                    "partition": f"payments-{(2, 0, 1, 3)[at]}",
                    "source": "payments",
                    "rows": 5000 - at,
                    "started_ms": 20.0 + at,
                    "reached_ms": ms,
                    "waited_ms": reached[0] - ms,
                }
                for at, ms in enumerate(reached)
            ],
            "slowest": "payments-2",
            "skew": 2.4,
            "more": 0,
            "unknown": None,
        }

    def _sinks(self, query: str) -> tuple[str, ...]:
        return ("alerts", "totals") if len(self.queries) == 1 else (query,)

    def _opened(self, number: int) -> float:
        return self._first + (number - 1) * INTERVAL_MS

    def _query(self, uid: str) -> Json:
        read = [270_000 + self.epochs * 5250 + at * 37 for at in range(4)]
        partitions = [
            {"partition": str(at), "offset": read[at], "end": read[at] + lag, "lag": lag}
            for at, lag in enumerate((140, 12, 2210, 0))
            if self.live  # only a running job asks its sources
        ]
        weak = self.weakest["guarantee"] if self.weakest else "exactly-once"
        return {
            "uid": uid,
            "generation": 3,
            "epoch": self.epochs + 1,
            "phase": self.phase if self.live else "idle",
            "phase_since": self.now - 1300,
            "watermark": self.now - 62_000 if self.live else None,
            "rows_per_second": 4180.5 if self.live else 0,
            "rows_total": self.epochs * 21_000,
            "guarantee": weak,
            "sources": [
                {
                    "uid": "payments",
                    "describe": "Kafka topic payments",
                    "guarantee": "exactly-once",
                    "partitions": partitions,
                    "watermark": self.now - 4_000 if self.live else None,
                },
                {
                    "uid": "rates",
                    "describe": "files in /data/rates",
                    "guarantee": weak,
                    "partitions": [],
                    "watermark": self.now - 62_000 if self.live else None,
                },
            ],
            "operators": [
                {"name": "Project", "stateful": False},
                {"name": "Project", "stateful": False},
                {"name": "Filter", "stateful": False},
                {"name": "Join LeftOuter", "stateful": False},
                {"name": "Aggregate", "stateful": True},
            ],
            "sinks": [
                {"uid": sink, "describe": f"Kafka topic {sink}", "guarantee": "exactly-once"}
                for sink in self._sinks(uid)
            ],
        }


def a_transaction(number: int, state: str, decision: str, age: float, **more: Any) -> Json:
    return {
        "query": "alerts",
        "sink": "alerts",
        "id": f"payments:alerts-g000003-{number:012x}",
        "epoch": 121,
        "state": state,
        "decision": decision,
        "age_seconds": age,
        "timeout_seconds": 900,
        "holds_back": state == "open",
        **more,
    }


def an_audit(now: int, epochs: int, queries: tuple[str, ...] = ("alerts",)) -> Json:
    """A report in which epoch 2 of each Kafka sink has lost rows, epoch 3 has left, and a Redis sink shows nothing."""
    about = {"first_epoch": 1, "last_epoch": epochs, "writers": 4 * epochs, "not_yet": 1}
    report: Json = {"job": "payments", "at": now / 1000 - 90, "status": 1, "unaccounted_rows": 2 * len(queries)}
    report |= {"verdict": "rows are not accounted for.", "sinks": [], "epochs": [], "findings": []}
    for query in queries:
        place = {"query": query, "sink": query}
        report["sinks"].append({**place, "kind": "KafkaSink", "rows": 21_000 * epochs, **about})
        lost, left = {2: 2, 3: 0}, {2: 2, 3: 21_000}
        report["epochs"] += [
            {**place, "epoch": epoch, "decided": 21_000, "visible": 21_000 - left.get(epoch, 0),
             "unaccounted": lost.get(epoch, 0)}
            for epoch in range(1, epochs + 1)
        ]  # fmt: skip
        report["findings"] += [
            {**place, "kind": "no longer provable", "rows": 21_000, "epoch": 3, "writer": None,
             "why": f"retention: {query}-2 begins at offset 63012"},
            {**place, "kind": "lost write", "rows": 2, "epoch": 2, "writer": 3, "why": "5248 of 5250 rows are visible"},
        ]  # fmt: skip
    place, why = {"query": queries[0], "sink": "totals"}, "a key holds its last value, whichever epoch wrote it"
    report["sinks"].append({**place, "kind": "RedisSink", "rows": 800, **about})
    report["epochs"].append({**place, "epoch": epochs, "decided": 800, "visible": None, "unaccounted": 0})
    unseen = {"kind": "not provable", "rows": 0, "epoch": None, "writer": None, "why": why}
    report["findings"].append({**place, **unseen})
    return report


def two_queries(now: int, epochs: int = 120) -> Run:
    """One job with two queries, of which the second is slower to fill."""
    return Run(
        "9b1d2c3e4f5a46788a9b0c1d2e3f4a5b",
        "shop",
        now - 5_400_000,
        epochs=epochs,
        now=now,
        queries=("orders", "refunds"),
        audit=an_audit(now, 12, ("orders", "refunds")),
        transactions=[
            a_transaction(1, "prepared", "decided", 1.2, query="orders", sink="orders"),
            a_transaction(2, "open", "undecided", 3.4, query="refunds", sink="refunds"),
        ],
        exceptions=[
            {"time": now - 60_000, "query": "refunds", **ERROR},
            {
                "time": now - 120_000,
                "query": None,
                "error": "ControlError",
                "happened": "The driver was killed by SIGKILL.",
                "safe": "every decided epoch is safe.",
                "to_do": "",
            },
        ],
    )


def crashed(now: int) -> Run:
    """A job whose process is gone, with a savepoint that is older than its checkpoint."""
    run = Run(
        "c4a5e1f0d2b34c5e8f7a6b5c4d3e2f10",
        "fraud",
        now - 7_200_000,
        "FAILED",
        now - 600_000,
        120,
        restarts=1,
        error={
            "error": "ControlError",
            "happened": "The process of job 'fraud' has ended and left no message.",
            "safe": "every decided epoch is safe.",
            "to_do": "start it again, which recovers it.",
        },
        savepoints=[
            {
                "path": "/savepoints/savepoint-fraud-3f2a9c41d07e",
                "kind": "native",
                "time": now - 5_000_000,
                "bytes": 48_200_000,
                "drained": False,
                "epochs": {"alerts": 90},
            },
        ],
        now=now,
    )
    run.exceptions = [{"time": run.end, "query": None, **(run.error or {})}]
    return run


def typical_runs(now: int, epochs: int = 120) -> list[Run]:
    """One that runs, one that was stopped, one that failed, and one with a name that is markup."""
    hour = 3_600_000
    living = Run(
        "34b06a4b56d3432ea0211db7ff05b13d",
        "payments",
        now - 3 * hour,
        epochs=epochs,
        now=now,
        restarts=1,
        savepoint="/savepoints/savepoint-payments-3f2a9c41d07e",
        audit=an_audit(now, 12),
        transactions=[
            a_transaction(1, "prepared", "decided", 1.2),
            a_transaction(2, "open", "undecided", 610.0),
            a_transaction(3, "committed", "decided", 6.0, holds_back=False),
        ],
        exceptions=[{"time": now - hour, "query": "alerts", **ERROR}],
        savepoints=[
            {
                "path": "/savepoints/savepoint-payments-3f2a9c41d07e",
                "kind": "native",
                "time": now - hour,
                "bytes": 48_200_000,
                "drained": False,
            },
        ],
    )
    past = Run("5d0c1f2a9b8e4c7d8f6a5b4c3d2e1f00", "payments", now - 30 * hour, "FINISHED", now - 4 * hour, 60)
    failing = Run(
        "77aa01c45e6f4b21a4f0cc9d10e2b3f4",
        "totals",
        now - 9 * hour,
        "FAILED",
        now - 8 * hour,
        40,
        restarts=10,
        error=ERROR,
        exceptions=[{"time": now - 8 * hour, "query": "alerts", **ERROR}],
        transactions=[
            a_transaction(7, "in doubt", "decided", 28_800.0),
            a_transaction(8, "prepared", "decided", 28_800.0),
            a_transaction(9, "open", "undecided", 28_800.0),
        ],
        weakest={
            "kind": "source",
            "uid": "rates",
            "guarantee": "at-least-once",
            "why": "its files may be replaced while they are read",
        },
    )
    odd = Run("00000000000000000000000000000bad", MARKUP, now - 2 * hour, "FINISHED", now - hour, 5, program=None)
    return [living, past, failing, odd]
