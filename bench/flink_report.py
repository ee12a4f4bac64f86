"""What the benchmark beside Flink found: a table for people, and a part of docs/benchmarks.md with its pictures."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

import flink_plots
from flink_home import VERSION
from penstock.supply.java import find_java
from rounds import Spread, console

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "assets"
BEGIN, END = "<!-- beside Flink: written by bench/bench_flink.py report -->", "<!-- beside Flink: end -->"

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number of a round, for people."""

    figure: str
    title: str
    form: str

    def text(self, value: float) -> str:
        return self.form.format(value)

    def spread(self, found: Spread) -> str:
        if found.least == found.most:
            return self.text(found.median)
        unit = self.form.partition("}")[2]
        least, most = (self.text(one).removesuffix(unit) for one in (found.least, found.most))
        return f"{self.text(found.median)} ({least} to {most})"


CPU = Figure("cpu_seconds_per_million_rows", "CPU per million rows", "{:,.2f} s")
MEMORY = Figure("peak_megabytes", "peak memory", "{:,.0f} MB")
FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "throughput": (
        Figure("rows_per_second", "rows/s", "{:,.0f}"),
        CPU,
        Figure("broker_cpu_seconds_per_million_rows", "broker's CPU per million rows", "{:,.2f} s"),
        MEMORY,
    ),
    "latency": (
        Figure("p50_ms", "p50", "{:,.0f} ms"),
        Figure("p99_ms", "p99", "{:,.0f} ms"),
        Figure("cores", "cores used", "{:,.2f}"),
        MEMORY,
    ),
    "silence": (Figure("silence_seconds", "silence", "{:,.1f} s"), MEMORY),
    "start": (
        Figure("started_seconds", "until started", "{:,.1f} s"),
        Figure("first_row_seconds", "until the first row is visible", "{:,.1f} s"),
    ),
    "savepoint": (
        Figure("savepoint_seconds", "until complete", "{:,.2f} s"),
        Figure("still_seconds", "longest pause in output", "{:,.2f} s"),
    ),
}
CASES = {
    "bytes": "bytes through",
    "json": "JSON parsed, half filtered, written",
    "keys": "counts of a million keys, rows in",
}
TITLES = {
    "throughput": "Throughput",
    "latency": "Latency at 2,000 rows/s, where no other rate is named",
    "silence": "Silence after kill -9",
    "start": "Start",
    "savepoint": "Savepoint",
}
OURS, THEIRS = "penstock", "flink"


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of a case, by system."""

    what: str
    shown: Figure
    by_system: Mapping[str, Spread]

    @property
    def ratio(self) -> str:
        """Penstock's median by Flink's; those of its variants, each with its name, where it was not measured itself."""
        theirs = self.by_system.get(THEIRS)
        if theirs is None or not theirs.median:
            return ""
        ours = {name: own.median / theirs.median for name, own in self.by_system.items() if name.startswith(OURS)}
        if OURS in ours:
            return f"{ours[OURS]:.2f}"
        return ", ".join(f"{ratio:.2f} {name.removeprefix(f'{OURS}, ')}" for name, ratio in ours.items())

    def cell(self, system: str) -> str:
        return self.shown.spread(self.by_system[system]) if system in self.by_system else ""


def lines(measure: str, cases: Mapping[str, Any]) -> Iterator[Line]:
    for case, by_system in cases.items():
        name = CASES.get(case) or flink_plots.at_interval(case, " interval")
        for shown in FIGURES[measure]:
            spreads = {system: Spread.of(own["rounds"], shown.figure) for system, own in by_system.items()}
            yield Line(f"{name}: {shown.title}", shown, spreads)


def show(results: Results) -> None:
    """On the terminal."""
    for measure, title in TITLES.items():
        if measure not in results:
            continue
        found = list(lines(measure, results[measure]))
        systems = list(dict.fromkeys(name for line in found for name in line.by_system))
        table = Table(title=title)
        for column in ("", *systems, "Penstock / Flink"):
            table.add_column(column)
        for line in found:
            table.add_row(line.what, *map(line.cell, systems), line.ratio)
        console.print(table)


def write(results: Results) -> None:
    """Into the page between its marks, and its pictures beside it."""
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{PAGE} has no place for it: {BEGIN} and {END}")
    pictures = flink_plots.draw(results)
    for name, picture in pictures.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")
    text = "\n\n".join([_machine(results["machine"]), *_tables(results), *map(_picture, pictures)])
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    console.print(f"{PAGE.relative_to(ROOT)} and {len(pictures)} pictures are written")


def _tables(results: Results) -> Iterator[str]:
    for measure, title in TITLES.items():
        if measure not in results:
            continue
        found = list(lines(measure, results[measure]))
        systems = list(dict.fromkeys(name for line in found for name in line.by_system))
        head = [title, *(f"{name[0].upper()}{name[1:]}" for name in systems), "Penstock / Flink"]
        rows = [[line.what, *map(line.cell, systems), line.ratio] for line in found]
        yield "\n".join(_row(cells) for cells in [head, ["---"] * len(head), *rows])
        yield _disturbance(results[measure])
    if "writers" in results:
        rows = [
            [f"{int(count):,}", *(f"{Spread.of(own['rounds'], name).median * 1000:,.0f} ms" for name in _STEPS)]
            for count, own in results["writers"].items()
        ]
        head = ["writers of an epoch (Penstock)", *_STEPS.values()]
        yield "\n".join(_row(cells) for cells in [head, ["---"] * len(head), *rows])
    if "history" in results:
        epochs = results["history"]["epoch_ms"]
        head = ["epochs before (Penstock)", *(f"{int(count):,}" for count in epochs)]
        row = ["an epoch, median of 50", *(f"{ms:,.0f} ms" for ms in epochs.values())]
        yield "\n".join(_row(cells) for cells in [head, ["---"] * len(head), row])


_STEPS = {"open_seconds": "to open and fill them", "seal_seconds": "to seal", "commit_seconds": "to commit"}


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _disturbance(cases: Mapping[str, Any]) -> str:
    rounds = [one for by_system in cases.values() for own in by_system.values() for one in own["rounds"]]
    count = {len(own["rounds"]) for by_system in cases.values() for own in by_system.values()}
    most = max(one["other_cores"] for one in rounds)
    lost = sum(one.get("lost", 0) + one.get("doubled", 0) for one in rounds)
    wrong = "" if not any("lost" in one for one in rounds) else f" Rows lost or doubled in all of them: {lost:,}."
    often = " or ".join(map(str, sorted(count)))
    used = f"other programs used at most {most:.2f} cores"
    how = "One round of each" if often == "1" else f"Medians of {often} rounds, least to most in brackets"
    return f"{how}; {used}.{wrong}"


def _machine(told: Mapping[str, Any]) -> str:
    return (
        f"Last measured on {told['date']}, each case in a run of its own: {told['cores']} cores ({told['processor']}),"
        " shared with the broker,"
        f" {told['memory_gigabytes']} GB of memory. Flink {told['flink']}, Spark {told['spark']}, Java {told['java']}."
    )


def _picture(name: str) -> str:
    return f"![{flink_plots.TITLES[name]}](assets/{name})"


def about_machine() -> dict[str, Any]:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "processor": found[1] if found else "unknown",
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "flink": VERSION,
        "spark": version("pyspark"),
        "java": find_java().version,
    }
