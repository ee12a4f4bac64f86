"""Run many histories, or look for planted bugs: see `make simulate`.

    python -m tests.support.simulation --histories 100000 [--seconds 60] [--from SEED] [--only SEED] [--record FILE]
    python -m tests.support.simulation --planted [--histories 20000] [--bug TEXT]
    python -m tests.support.simulation --stories

Exit status 1 where an anomaly was found, or a planted bug was not, or not in a story of at most ten faults.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

# Order in sets of text is part of a history.
if os.environ.get("PYTHONHASHSEED") != "0":
    again = [sys.executable, "-m", "tests.support.simulation", *sys.argv[1:]]
    os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})

from penstock.kafka.connections import kafka_python
from tests.support.proof import recorded
from tests.support.simulation.planted import BUGS, OF_SINKS, SPARE, stale
from tests.support.simulation.shrink import simplest, told
from tests.support.simulation.stories import run_all
from tests.support.simulation.world import World, chance, history

_BLOCK = 50
_SHORT = 10  # faults that the story of a planted bug may have
_clock, _cpu = time.perf_counter, time.process_time


@dataclass
class Tally:
    histories: int = 0
    steps: int = 0
    starts: int = 0
    cpu: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    reported: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.histories += other.histories
        self.steps += other.steps
        self.starts += other.starts
        self.cpu += other.cpu
        self.faults += other.faults
        self.reported += other.reported
        self.failed += other.failed


def _settle() -> None:
    """What was imported stays; what a history leaves is little, and collected now and then."""
    kafka_python()
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def block(first: int) -> Tally:
    tally, began = Tally(), _cpu()
    for seed in range(first, first + _BLOCK):
        verdict = history(seed)
        tally.histories += 1
        tally.steps += verdict.steps
        tally.starts += verdict.starts
        tally.faults.update(fault.kind for fault in verdict.applied)
        if verdict.reported:
            tally.reported[verdict.reported.partition(":")[0]] += 1
        if verdict.anomalies:
            tally.failed.append(seed)
    tally.cpu = _cpu() - began
    return tally


def simulate(first: int, histories: int, seconds: float, workers: int, numbers: dict[str, Any]) -> Tally:
    kafka_python()  # before the workers are forked, which would import it each
    total, began = Tally(), _clock()
    blocks = range(first, first + histories, _BLOCK)
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, _settle) as pool:
        for tally in pool.imap_unordered(block, blocks):
            total.add(tally)
            for seed in tally.failed:  # a long run is looked into while it goes on
                print(f"seed {seed:,} shows an anomaly; {total.histories:,} histories so far", flush=True)
            if _clock() - began > seconds:
                pool.terminate()
                break
    lasted = _clock() - began
    rate = total.histories / lasted
    print(f"{total.histories:,} histories in {lasted:.1f} s: {rate:,.0f} a second, {rate * 60:,.0f} a minute")
    own = total.cpu / total.histories
    print(
        f"{own * 1000:.1f} ms of a core each: {60 * workers / own:,.0f} a minute where {workers} cores do nothing else"
    )
    print(f"{total.steps:,} steps, {total.starts:,} starts of drivers, {sum(total.faults.values()):,} faults:")
    print("  " + ", ".join(f"{kind} {count:,}" for kind, count in total.faults.most_common()))
    print(f"ended with an error for an operator, as promised: {dict(total.reported) or 'none'}")
    print(f"seeds {first:,} to {first + total.histories - 1:,}; histories with anomalies: {len(total.failed)}")
    if total.failed:
        print(f"their seeds: {', '.join(map(str, sorted(total.failed)[:20]))}")
    numbers |= {
        "ok": not total.failed,
        "histories": total.histories,
        "a_minute": round(rate * 60),
        "ms_of_a_core": round(own * 1000, 1),
        "workers": workers,
        "steps": total.steps,
        "starts": total.starts,
        "faults": dict(total.faults.most_common()),
        "reported": dict(total.reported),
        "anomalies": len(total.failed),
        "failed_seeds": sorted(total.failed)[:20],
    }
    return total


def explain(seed: int) -> None:
    setup, faults = chance(seed)
    verdict = history(seed)
    print(f"\nSeed {seed}: {'; '.join(verdict.anomalies) or 'no anomaly'}")
    if verdict.anomalies:
        print(told(*simplest(setup, faults, seed)))


@dataclass
class Found:
    """A planted bug: how many histories, and seconds of one core, until it showed; and the shortest story of it. Not
    found: without an anomaly."""

    name: str
    histories: int = 0
    seconds: float = 0.0
    faults: int = 0
    anomaly: str = ""
    story: str = ""

    @property
    def short(self) -> bool:
        return bool(self.anomaly) and self.faults <= _SHORT

    def __str__(self) -> str:
        faults = str(self.faults) if self.anomaly else ""
        shown = self.anomaly[:70] or "NOT FOUND"
        return f"{self.name:<62} {self.histories:>9,} {self.seconds:>8.1f} {faults:>6}  {shown}"


def find(name: str, most: int) -> Found:
    bug, began, number = BUGS[name], _cpu(), 0
    for number, (setup, faults, seed) in enumerate(bug.histories(most), 1):
        with bug.planted():
            anomalies = World(setup, faults, seed).run().anomalies
        if anomalies and not World(setup, faults, seed).run().anomalies:
            lasted = _cpu() - began
            with bug.planted():
                less, left, verdict = simplest(setup, faults, seed)
            return Found(name, number, lasted, len(left), verdict.anomalies[0], told(less, left, verdict))
    return Found(name, number, _cpu() - began)


def planted(most: int, workers: int, only: str, numbers: dict[str, Any]) -> bool:
    names = [name for name in BUGS if only in name and (only or name not in SPARE)]
    kafka_python()
    print(f"{'planted bug':<62} {'histories':>9} {'seconds':>8} {'faults':>6}  found as")
    found: dict[str, Found] = {}
    with multiprocessing.get_context("fork").Pool(workers, _settle) as pool:
        for one in pool.imap_unordered(partial(find, most=most), names):
            found[one.name] = one
            print(one, flush=True)
            if only:
                print(f"{one.story}\n")
    of_sinks = sum(name in OF_SINKS for name in names)
    seen = [one for one in found.values() if one.anomaly]
    print(f"{len(seen)} of {len(names)} found; {len(names) - of_sinks} are of the protocol, {of_sinks} of sinks")
    print(f"the longest story has {max((one.faults for one in seen), default=0)} faults, of {_SHORT} that it may have")
    ok = all(one.short for one in found.values())
    bugs = {
        name: {
            "found": bool(found[name].anomaly),
            "histories": found[name].histories,
            "core_seconds": round(found[name].seconds, 1),
            "faults": found[name].faults,
            "anomaly": found[name].anomaly[:120],
            "of": "sinks" if name in OF_SINKS else "protocol",
            "among": BUGS[name].among,
        }
        for name in names
    }
    numbers |= {"ok": ok, "most": most, "bugs": bugs, "set_aside": SPARE}
    return ok


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--bug", default="", help="of the planted ones, those with this text in their names")
    parser.add_argument("--stories", action="store_true", help="what once went wrong")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path, help="keep the result in this file, for make proof")
    given = parser.parse_args()
    if given.only is not None:
        explain(given.only)
        return 0
    if given.stories:
        failed = [*run_all(), *(f"{story}: with its bug planted it does not go wrong" for story in stale())]
        print("\n\n".join(failed))
        return 1 if failed else 0
    command = f"make simulate HISTORIES={given.histories}"
    if given.planted:
        kept = None if given.bug else given.record  # a part of the bugs is no result
        with recorded(kept, "planted", f"{command} PLANTED=1", 0) as numbers:
            found = planted(given.histories, given.workers, given.bug, numbers)
        return 0 if found else 1
    with recorded(given.record, "histories", f"{command} SEED={given.first}", given.first) as numbers:
        total = simulate(given.first, given.histories, given.seconds, given.workers, numbers)
    for seed in sorted(total.failed)[:3]:
        explain(seed)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
