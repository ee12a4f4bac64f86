"""`python -m tests.mutants [MODULE…] [--record FILE]`: tries the mutants and says what became of them."""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.trial import Mutant, Trial, try_module
from tests.support.proof import circumstances, keep

LEAST = 95.0
"""Percent of the mutants of all modules together that the tests must catch."""

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a mutant, or a kind of them, may survive."""

    module: str
    why: str
    function: str = "*"
    removed: str = ""
    added: str = ""
    like: str = ""

    def covers(self, mutant: Mutant) -> bool:
        if not (
            fnmatch.fnmatchcase(mutant.module, self.module) and fnmatch.fnmatchcase(mutant.function, self.function)
        ):
            return False
        if self.like:
            return re.search(self.like, f"{mutant.removed} → {mutant.added}") is not None
        return (mutant.removed, mutant.added) == (self.removed, self.added)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all trials together show."""

    mutants: int
    caught: int
    explained: int
    unexplained: tuple[Mutant, ...]
    needless: tuple[Explained, ...]

    @property
    def percent(self) -> float:
        return 100.0 * self.caught / self.mutants if self.mutants else 0.0

    @property
    def good(self) -> bool:
        return self.percent >= LEAST and not self.unexplained


def judge(trials: Iterable[Trial], known: Sequence[Explained]) -> Verdict:
    mutants = [mutant for trial in trials for mutant in trial.mutants]
    left = [mutant for mutant in mutants if not mutant.caught]
    unexplained = tuple(mutant for mutant in left if not any(one.covers(mutant) for one in known))
    tried = {mutant.module for mutant in mutants}
    needless = tuple(
        one
        for one in known
        if any(fnmatch.fnmatchcase(name, one.module) for name in tried) and not any(map(one.covers, left))
    )
    caught, explained = len(mutants) - len(left), len(left) - len(unexplained)
    return Verdict(len(mutants), caught, explained, unexplained, needless)


def load_targets(text: str) -> dict[str, list[str]]:
    return {name: [f"tests/unit/{test}.py" for test in tests] for name, tests in tomllib.loads(text).items()}


def load_survivors(text: str) -> tuple[Explained, ...]:
    entries: Sequence[Mapping[str, Any]] = tomllib.loads(text).get("survivor", [])
    return tuple(Explained(**one) for one in entries)


def main(wanted: Sequence[str], record: Path | None = None) -> int:
    targets = load_targets((_HERE / "targets.toml").read_text())
    known = load_survivors((_HERE / "survivors.toml").read_text())
    strange = set(wanted) - set(targets)
    if strange:
        print(f"not in targets.toml: {', '.join(sorted(strange))}")
        return 2
    trials = []
    print(f"{'module':34}{'mutants':>8}{'caught':>8}{'explained':>10}{'left':>6}{'%':>7}{'seconds':>9}", flush=True)
    for module in wanted or targets:
        trials.append(try_module(module, targets[module]))
        one = judge(trials[-1:], known)
        row = f"{module:34}{one.mutants:8}{one.caught:8}{one.explained:10}{len(one.unexplained):6}{one.percent:7.1f}"
        print(f"{row}{trials[-1].seconds:9.0f}", flush=True)
        if record is not None:
            counts = {"mutants": one.mutants, "caught": one.caught, "explained": one.explained}
            result = {"ok": not one.unexplained, **counts, "seconds": round(trials[-1].seconds)}
            keep(record, module, circumstances(f"make mutants OF={module}") | result, parts=targets)
    verdict = judge(trials, known)
    for mutant in verdict.unexplained:
        print(f"\nnot caught, not explained: {mutant}")
    for entry in verdict.needless:
        print(f"\nno longer needed in survivors.toml: {entry.module} {entry.function} {entry.like or entry.removed}")
    print(
        f"\n{verdict.mutants} mutants, {verdict.caught} caught, {verdict.mutants - verdict.caught} survived"
        f" ({verdict.explained} explained), {verdict.percent:.1f} %, needed {LEAST:.0f} % and every survivor explained"
    )
    # Of one module alone a few that are explained may be more than so many percent.
    return 0 if verdict.good or (wanted and not verdict.unexplained) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--record", type=Path, help="keep the result of each module in this file, for make proof")
    given = parser.parse_args()
    sys.exit(main(given.modules, given.record))
