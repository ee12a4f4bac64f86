"""Write docs/proof.md from the last results of the long runs, which are in docs/proof: `make proof`.

    python -m scripts.make_proof [PART …]      first runs these parts, with their usual numbers: hours for all

A part without a result is shown as not run. No number on the page is written by hand.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.proof import FOLDER, ROOT, read

PAGE = ROOT / "docs" / "proof.md"
Result = Mapping[str, Any]
Results = Mapping[str, Result]

#: How each part is run, as `make` runs it.
COMMANDS = {
    "simulation": "make simulate HISTORIES=100000",
    "planted-bugs": "make simulate HISTORIES=20000 PLANTED=1",
    "mutants": "make mutants",
    "power-cuts": "make power-cuts",
    "real-time-chaos": "make chaos-real-time FAULTS=200",
    "cluster-chaos": "make chaos-cluster MINUTES=10",
    "soak": "make soak",
    "specification": "make specification",
}

HEAD = """\
# Proof

`make proof` writes this page from the results in docs/proof, which the runs below keep there. A part without a result
is *not run*; a run that failed is shown as failed. Each result names its command, seed and commit, so that it can be
repeated. The seed fixes what is drawn; times depend on the machine.

In simulation, power cuts and chaos, a reader that shares no code with writers and committers judges the rows
(`penstock.testing.anomalies`).
"""

#: What each part shows.
INTRODUCTIONS = {
    "simulation": """\
The real coordinator, ledger, recovery, drainer, lease and committers over simulated time, disk, network and systems:
[how](concepts/epochs.md#simulation).""",
    "planted-bugs": """\
One bug at a time is planted into the real code. The simulation must find it, and shrink what it found to a story of at
most ten faults. *Among* names the kinds of histories, sinks and modes that are drawn, where these are not all; a bug
that drawn histories come to too seldom has a story, which is run at every place where it may go wrong.""",
    "mutants": """\
Small changes, one at a time, in the modules that decide, commit and recover. The unit tests must notice each.
*Explained* are those without a visible effect, each with its reason in `tests/mutants/survivors.toml`.""",
    "power-cuts": """\
All processes of a real job die at a failpoint, and the disk loses what was not synced, by a seed. The job comes up by
itself, with nothing lost and nothing doubled, or the test fails: `tests/faults/test_power_cut_spark.py`.""",
    "real-time-chaos": """\
Drivers, JVMs, executors, brokers and the network fail at random under real-time jobs, while rows arrive.""",
    "cluster-chaos": """\
Executors, workers, master, driver and broker of a job on a standalone cluster are killed or paused at random.""",
    "soak": """\
The demo for long: SIGKILL of the whole job in every phase of an epoch, then every row is checked.""",
    "specification": """\
Register, look, claim, decide as a specification in TLA+ (`docs/proof/tla/Epochs.tla`), in every state within its
bounds, checked by TLC; and once with each of four steps left out or moved, which must break an invariant. Claims matter
only where a barrier is cut anew or a plan is not deterministic, which the specification leaves out.
`tests/unit/engine/test_protocol_exploration.py` does the same with the protocol's own code, in larger worlds.""",
}


def page(folder: Path) -> str:
    found = {part: read(folder / f"{part}.json") for part in COMMANDS if part != "planted-bugs"}
    simulated = found["simulation"]
    found["simulation"] = {name: one for name, one in simulated.items() if name == "histories"}
    found["planted-bugs"] = {name: one for name, one in simulated.items() if name == "planted"}
    sections = [HEAD, _summary(found)]
    for part, (title, show) in PARTS.items():
        sections += [f"## {title}\n\n{INTRODUCTIONS[part]}\n", show(found[part]) if found[part] else _not_run(part)]
    return "\n".join(section.rstrip("\n") + "\n" for section in sections)


def _not_run(part: str) -> str:
    return f"Not run. `{COMMANDS[part]}` runs it."


def _summary(found: Mapping[str, Results]) -> str:
    lines = ["| | result | measured | on |", "|---|---|---|---|"]
    for part, (title, _) in PARTS.items():
        results = list(found[part].values())
        anchor = re.sub(r"[^a-z]+", "-", title.lower())
        if not results:
            lines.append(f"| [{title}](#{anchor}) | not run | | |")
            continue
        failed = sum(not one["ok"] and one.get("outcome") != "not run" for one in results)
        verdict = f"**{failed} failed**" if failed else "passed"
        lines.append(f"| [{title}](#{anchor}) | {verdict} | {MEASURED[part](found[part])} | {_dates(results)} |")
    return "\n".join(lines)


def _dates(results: Sequence[Result]) -> str:
    days = sorted({one["date"].split()[0] for one in results})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _repeat(one: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    commit = f", commit {one['commit']}" if one["commit"] else ""
    lasted = f"{one['seconds'] / 60:.1f} minutes" if one["seconds"] >= 90 else f"{one['seconds']:.0f} seconds"
    failed = "" if one["ok"] else f"**The run failed**{': ' + one['error'] if one.get('error') else ''}. "
    return f"{failed}`{one['command']}` on {one['date']} UTC, {lasted} on {one['cores']} cores{commit}; {versions}."


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def _total(results: Results, name: str) -> int:
    return sum(int(one.get(name, 0)) for one in results.values())


def _total_of(results: Results, name: str) -> int:
    """Of the rows that a soak has judged."""
    return sum(int(one.get("payments", {}).get(name, 0)) for one in results.values())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda one: -one[1]))


# Each part


def _simulation(results: Results) -> str:
    one = results["histories"]
    if "histories" not in one:
        return _repeat(one)
    rows = [
        ("histories", one["histories"]),
        ("with an anomaly", one["anomalies"]),
        ("ended with an error for an operator, as promised", _counts(one["reported"]) or "none"),
        ("drivers started", one["starts"]),
        ("steps", one["steps"]),
        ("faults", f"{sum(one['faults'].values()):,}: {_counts(one['faults'])}"),
        ("rate", f"{one['a_minute']:,} a minute by the clock; {one['ms_of_a_core']} ms of a core each"),
    ]
    seeds = f"Seeds with an anomaly: {', '.join(map(str, one['failed_seeds']))}.\n\n" if one["failed_seeds"] else ""
    return f"{_table(('', ''), rows)}\n\n{seeds}{_repeat(one)}"


def _planted(results: Results) -> str:
    one = results["planted"]
    if "bugs" not in one:
        return _repeat(one)
    rows = [
        (
            name,
            bug["of"],
            bug["among"],
            f"{bug['histories']:,}" if bug["found"] else f"**not found** in {bug['histories']:,}",
            f"{bug['core_seconds']:.1f}",
            bug["faults"] if bug["found"] else "",
            bug["anomaly"].replace("_", "\\_"),
        )
        for name, bug in one["bugs"].items()
    ]
    head = (
        "planted bug",
        "of",
        "among",
        "histories until found",
        "seconds of a core",
        "faults in its story",
        "found as",
    )
    text = f"{_table(head, rows)}\n\n{_repeat(one)}"
    aside = one.get("set_aside", {})
    if aside:
        text += "\n\nNot planted in this run, with the reason:\n\n" + _table(("bug", "why"), list(aside.items()))
    return text


def _mutants(results: Results) -> str:
    rows = []
    for module, one in results.items():
        share = f"{100 * one['caught'] / one['mutants']:.1f} %" if one["mutants"] else ""
        left = one["mutants"] - one["caught"] - one["explained"]
        where = f"{one['date'].split()[0]}{', ' + one['commit'] if one['commit'] else ''}"
        rows.append((f"`{module}`", one["mutants"], one["caught"], one["explained"], left, share, where))
    head = ("module", "mutants", "caught", "explained", "left", "caught, %", "on")
    return f"{_table(head, rows)}\n\n`make mutants OF=MODULE` tries one module again; there is no seed."


def _power(results: Results) -> str:
    groups: defaultdict[str, list[Result]] = defaultdict(list)
    for name, one in results.items():
        groups[name.partition("[")[0]].append(one)
    rows = []
    for name, ones in groups.items():
        outcomes = Counter(one["outcome"] for one in ones)
        verdict = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items(), reverse=True))
        cuts, taken = sum(one.get("cuts", 0) for one in ones), sum(one.get("taken", 0) for one in ones)
        seconds = sum(one["seconds"] for one in ones)
        rows.append((f"`{name}`", verdict, cuts, taken, seconds, _dates(ones)))
    head = ("test", "verdict", "power cuts", "files lost, returned or damaged", "seconds", "on")
    newest = max(results.values(), key=lambda one: one["date"])
    again = {
        **newest,
        "seconds": _total(results, "seconds"),
        "ok": all(r["outcome"] != "failed" for r in results.values()),
    }
    return f'{_table(head, rows)}\n\n{_repeat(again)} Seeds are in the names of the tests; `OF="-k NAME"` runs one.'


def _real_time(results: Results) -> str:
    text = []
    for where, one in results.items():
        if "faults" not in one:
            text.append(f"### {where}\n\n{_repeat(one)}")
            continue
        rows = [(kind, count, one["silence"].get(kind, "")) for kind, count in one["faults"].items()]
        text.append(f"### {where}\n\n{_table(('fault', 'times', 'seconds until rows flow again, median'), rows)}")
        verdict = {
            "lost": one["lost"],
            "doubled": one["doubled"],
            "out of order": one["disordered"],
            "never sent": one["never_sent"],
            "transactions left open": one["open"],
            "other complaints": one["wrong"],
        }
        rows_ = f"{sum(one['rows'].values()):,} rows ({_counts(one['rows'])}), {one['drivers']} drivers"
        text.append(f"{rows_}: {', '.join(f'{name} {count}' for name, count in verdict.items())}.\n\n{_repeat(one)}")
    return "\n\n".join(text)


def _cluster(results: Results) -> str:
    text = []
    for one in results.values():
        if "kills" in one:
            text.append(f"Killed or paused: {_counts(one['kills'])}; the driver started {one['starts']} times.")
            verdict = f"lost {one['lost']}, doubled {one['doubled']}, transactions left open {one['open']}"
            text.append(f"{one['rows']:,} rows: {verdict}.")
        text.append(_repeat(one))
    return "\n\n".join(text)


def _soak(results: Results) -> str:
    text = []
    for one in results.values():
        if "payments" in one:
            rows, totals = one["payments"], one["totals"]
            verdict = f"lost {rows['lost']}, doubled {rows['duplicated']}, never sent {rows['unexpected']}"
            wrong = f"totals wrong {totals['lost'] + totals['unexpected']}, doubled {totals['duplicated']}"
            kills = f"{one['kills']} kills, {one['recoveries']} recoveries, {one['epochs']:,} epochs"
            text.append(f"{rows['expected']:,} rows in, {rows['found']:,} out, {kills}: {verdict}; {wrong}.")
        text.append(_repeat(one))
    return "\n\n".join(text)


def _specification(results: Results) -> str:
    one = results["Epochs"]
    if "states" not in one:
        return _repeat(one)
    bounds = ", ".join(f"{name.lower()} {value}" for name, value in one["bounds"].items())
    rows = [("as it is", one["states"], one["violated"] or "no invariant broken")]
    rows += [(bug, found["states"], found["violated"] or "**not noticed**") for bug, found in one["bugs"].items()]
    table = _table(("specification", "distinct states visited", "invariant broken"), rows)
    return f"{table}\n\nBounds: {bounds}, two writers. {_repeat(one)}"


PARTS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "simulation": ("Simulated histories", _simulation),
    "planted-bugs": ("Planted bugs", _planted),
    "mutants": ("Mutants", _mutants),
    "power-cuts": ("Power cuts under a real Spark", _power),
    "real-time-chaos": ("Faults under real-time jobs", _real_time),
    "cluster-chaos": ("Faults on a Spark cluster", _cluster),
    "soak": ("Soak", _soak),
    "specification": ("Specification", _specification),
}

MEASURED: dict[str, Callable[[Results], str]] = {
    "simulation": lambda found: (
        f"{_total(found, 'histories'):,} histories, {_total(found, 'anomalies')} with an anomaly"
    ),
    "planted-bugs": lambda found: (
        f"{sum(bug['found'] for one in found.values() for bug in one.get('bugs', {}).values())}"
        f" of {sum(len(one.get('bugs', {})) for one in found.values())} found"
    ),
    "mutants": lambda found: (
        f"{_total(found, 'caught'):,} of {_total(found, 'mutants'):,} caught in {len(found)} modules,"
        f" {_total(found, 'explained')} explained"
    ),
    "power-cuts": lambda found: (
        f"{_total(found, 'cuts'):,} cuts in {sum(one['outcome'] != 'not run' for one in found.values())} tests,"
        f" {sum(one['outcome'] == 'not run' for one in found.values())} not run"
    ),
    "real-time-chaos": lambda found: (
        f"{sum(sum(one.get('faults', {}).values()) for one in found.values()):,} faults,"
        f" {sum(sum(one.get('rows', {}).values()) for one in found.values()):,} rows,"
        f" lost {_total(found, 'lost')}, doubled {_total(found, 'doubled')}"
    ),
    "cluster-chaos": lambda found: (
        f"{sum(sum(one.get('kills', {}).values()) for one in found.values()):,} faults, {_total(found, 'rows'):,} rows,"
        f" lost {_total(found, 'lost')}, doubled {_total(found, 'doubled')}"
    ),
    "soak": lambda found: (
        f"{_total_of(found, 'expected'):,} rows, {_total(found, 'kills')} kills,"
        f" lost {_total_of(found, 'lost')}, doubled {_total_of(found, 'duplicated')}"
    ),
    "specification": lambda found: (
        f"{_total(found, 'states'):,} states,"
        f" {sum(bool(bug['violated']) for one in found.values() for bug in one.get('bugs', {}).values())}"
        f" of {sum(len(one.get('bugs', {})) for one in found.values())} bugs noticed"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The page of proof")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"to run first: {', '.join(COMMANDS)}")
    parts = parser.parse_args().parts
    if strange := set(parts) - set(COMMANDS):
        parser.error(f"there is no part {', '.join(sorted(strange))}")
    failed = [part for part in parts if subprocess.run(shlex.split(COMMANDS[part]), cwd=ROOT).returncode]
    PAGE.write_text(page(FOLDER))
    sys.stdout.write(f"docs/proof.md is written{'; failed: ' + ', '.join(failed) if failed else ''}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
