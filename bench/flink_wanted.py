"""What Penstock wants to reach beside Flink: the rounds that show it, in pieces, and whether results reach it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from rounds import Spread, console

FLINK, PENSTOCK, REAL_TIME, STANDBY = "flink", "penstock", "penstock, real time", "penstock, standby"
ONE_TASK = "penstock, one task"

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """One measure with its options. `trial`: options that only show that it works. `minutes`: how long it takes with
    three rounds, when no round has to be repeated."""

    measure: str
    options: Sequence[str]
    trial: Sequence[str]
    minutes: int


_LATENCY = ("--interval", "100", "--warm-up", "60", "--seconds", "60")
_SHORT = ("--warm-up", "5", "--seconds", "10")
_FEW = ("--rows", "4000000", "--epoch", "500000")
PIECES: Mapping[str, Piece] = {
    "latency-2000": Piece(
        "latency", (*_LATENCY, "--rate", "2000", "--systems", FLINK, ONE_TASK, REAL_TIME), _SHORT, 25
    ),
    "latency-50000": Piece("latency", (*_LATENCY, "--rate", "50000", "--systems", FLINK, REAL_TIME), _SHORT, 17),
    "bytes": Piece("throughput", ("--work", "bytes", "--systems", FLINK, PENSTOCK, REAL_TIME), _FEW, 11),
    "json": Piece("throughput", ("--work", "json", "--systems", FLINK, PENSTOCK), _FEW, 10),
    "counts": Piece("throughput", ("--work", "keys", "--systems", FLINK, PENSTOCK), _FEW, 12),
    "silence": Piece("silence", ("--systems", PENSTOCK, STANDBY), ("--warm-up", "5", "--after", "30"), 9),
    "growth": Piece("growth", ("--minutes", "30"), ("--minutes", "1"), 33),
}


def arguments(name: str, *, trial: bool) -> list[str]:
    """Of bench_flink.py."""
    piece = PIECES[name]
    return [piece.measure, *piece.options, *(piece.trial if trial else ())]


@dataclass(frozen=True)
class Verdict:
    """`found` is None where it was not measured."""

    what: str
    wanted: str
    found: float | None
    met: bool
    form: str = "{:,.2f}"


def verdicts(results: Results) -> Iterator[Verdict]:
    """Medians over the rounds, beside Flink's of the same run where a ratio is wanted."""

    def median(measure: str, case: str, system: str, figure: str) -> float | None:
        rounds = results.get(measure, {}).get(case, {}).get(system, {}).get("rounds", [])
        if not rounds or any(figure not in one for one in rounds):
            return None
        return Spread.of(rounds, figure).median

    def ratio(measure: str, case: str, system: str, figure: str) -> float | None:
        ours, theirs = (median(measure, case, one, figure) for one in (system, FLINK))
        return ours / theirs if ours is not None and theirs else None

    def most(what: str, found: float | None, limit: float, form: str = "{:,.2f}") -> Verdict:
        return Verdict(what, f"at most {form.format(limit)}", found, found is not None and found <= limit, form)

    def least(what: str, found: float | None, limit: float) -> Verdict:
        return Verdict(what, f"at least {limit:.2f}", found, found is not None and found >= limit)

    for case, rate, limit in (("100", "2,000", 0.5), ("100 at 50000", "50,000", 1.0)):
        for percent in ("p50", "p99"):
            by = ratio("latency", case, REAL_TIME, f"{percent}_ms")
            yield most(f"real time by Flink, {rate} rows/s, {percent}", by, limit)
        by = ratio("latency", case, REAL_TIME, "cores")
        yield Verdict(f"real time by Flink, {rate} rows/s, cores used", "to be known", by, by is not None)
    yield least("real time by Flink, rows that wait", ratio("throughput", "bytes", REAL_TIME, "rows_per_second"), 0.8)
    grown = results.get("growth", {}).get(REAL_TIME, {})
    for figure in ("p50_ms", "p99_ms", "memory"):
        name = figure.removesuffix("_ms")
        yield most(f"real time, last third by first, {name}", grown.get(f"{figure}_growth"), 1.1)
    for percent in ("p50", "p99"):
        by = ratio("latency", "100", ONE_TASK, f"{percent}_ms")
        yield most(f"epochs by Flink, 2,000 rows/s, {percent} after the first minute", by, 1.7)
    first = median("latency", "100", ONE_TASK, "first_p99_ms")
    yield most("epochs, 2,000 rows/s, p99 of the first minute, ms", first, 600, "{:,.0f}")
    for case, what, limit in (("bytes", "bytes", 1.0), ("keys", "counts", 1.0), ("json", "JSON", 0.7)):
        yield least(f"epochs by Flink, {what}", ratio("throughput", case, PENSTOCK, "rows_per_second"), limit)
    for system, limit in ((PENSTOCK, 6.0), (STANDBY, 1.5)):
        found = median("silence", "1000", system, "silence_seconds")
        yield most(f"{system}: silence after kill -9, s", found, limit, "{:,.1f}")


def show(results: Results) -> None:
    table = Table(title="Wanted beside Flink")
    for column in ("", "wanted", "found", "met"):
        table.add_column(column)
    for one in verdicts(results):
        found = "not measured" if one.found is None else one.form.format(one.found)
        table.add_row(one.what, one.wanted, found, "yes" if one.met else "no")
    console.print(table)
