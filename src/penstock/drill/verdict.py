"""What a drill has found: mistakes of the job, each with examples, and what could not be judged.

| found by | what |
|---|---|
| the plan, before anything runs | a link below exactly-once, an option that loses rows, a clock, chance |
| the audit of the drilled run | lost, doubled, torn, changed, or never decided, beside the ledger |
| the calm run over the same input | rows that only one of the two has; order within a key |
| the functions of the program | files they write and requests they send: each replay does it again |

What is not proven accuses nobody: it is not judged.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pj

from penstock.audit.compare import ANOMALIES, Decided, Finding
from penstock.audit.report import Audit, decided_of
from penstock.audit.stores import rows_of
from penstock.contracts.guarantees import Guarantee
from penstock.drill.effects import CONNECTS
from penstock.drill.run import JobRun, Ran, Schedule, calm_run, effects_of, keeps_state, same_cuts
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.spark.lane_plan import changing_functions, losing_options, python_functions
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST, ORDER, TORN, Row, find_anomalies
from penstock.testing.oracle import EXAMPLES, Verdict, compare

if TYPE_CHECKING:
    from penstock.engine.settlement import QueryLedger
    from penstock.job.job import Job

DOUBLED, NEVER_DECIDED = "doubled", "never decided"
OTHER_ROWS, SIDE_EFFECT, NOT_REPEATABLE, GUARANTEE, FAILED = (
    "other rows", "side effect", "not repeatable", "guarantee", "job failed",
)  # fmt: skip
_SHARE = 0.55  # of the time, for the faults; the rest is for the end, the audit and the calm run
_LEAST_SECONDS = 30.0
_OF_AUDIT = {LOST: "lost", DUPLICATE: DOUBLED, ABORTED: NEVER_DECIDED}


@dataclass(frozen=True, slots=True)
class Mistake:
    """`where`: the query, sink, source or function."""

    kind: str
    where: str
    why: str
    examples: Sequence[str] = ()


@dataclass
class Result:
    job: str
    seed: int
    at: float = field(default_factory=time.time)
    mistakes: list[Mistake] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    drilled: Ran = field(default_factory=Ran)
    calm: Ran = field(default_factory=Ran)

    @property
    def status(self) -> int:
        """0: nothing is wrong; 1: mistakes; 3: nothing is wrong in what could be judged, and something could not be."""
        return 1 if self.mistakes else 3 if self.not_judged else 0

    @property
    def verdict(self) -> str:
        known = {0: "Every row arrived exactly once.", 1: f"Mistakes: {len(self.mistakes)}."}
        return known.get(self.status, "Nothing is wrong in what could be judged.")

    def to_dict(self) -> dict[str, Any]:
        runs = {name: getattr(self, name).to_dict() for name in ("drilled", "calm")}
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in runs}
        mistakes = [asdict(each) for each in self.mistakes]
        return {**own, "status": self.status, "verdict": self.verdict, "mistakes": mistakes, **runs}


def refuse_consuming(job: Job) -> None:
    """Raise for sources whose rows are gone for others once they are read."""
    source: Any
    for uid, source in job._sources.items():
        if getattr(source, "cleans", False) or (type(source).__name__ == "SocketSource" and source.journal is not None):
            raise ConfigurationError(
                f"Source {uid!r} cannot be drilled: what the drill reads, the job would not read any more.",
                safe="nothing was run.",
                to_do="drill the job on a copy of its input, without cleanSource or over files instead of a socket.",
            )


def look_at_plan(job: Job) -> Iterator[Mistake]:
    """What is wrong whatever happens."""
    for query, chain in job.chains().items():
        for link in chain.links:
            if link.guarantee is not Guarantee.EXACTLY_ONCE:
                yield Mistake(GUARANTEE, f"{link.kind} {link.name}", f"{link.guarantee}: {link.because}; {link.lift}")
        frame = job._plans[query].frame
        for option, value in losing_options(frame):
            yield Mistake(
                GUARANTEE, f"query {query}", f"{option}={value} lets Spark go on past rows it should have read"
            )
        for name in changing_functions(frame):
            yield Mistake(NOT_REPEATABLE, f"query {query}", f"{name} gives other values when an epoch is run again")


def suspects(job: Job) -> dict[str, str]:
    """By query: what a difference from the calm run can come from."""
    found = {}
    for query, plan in job._plans.items():
        functions = [f"the Python function {name}" for name in python_functions(plan.frame)]
        claimed = [f"source {uid}, which the program calls replayable" for uid, source in plan.sources.items()
                   if getattr(source, "replayable", False)]  # fmt: skip
        found[query] = " or ".join(dict.fromkeys(functions + claimed)) or "the plan"
    return found


class Drill:
    """Of one job; `columns` are what it writes into each sink, where that is known."""

    def __init__(
        self, job: Job, script: Path, settings: Mapping[str, str], columns: Mapping[str, Any], seed: int
    ) -> None:
        self._job, self._script, self._settings, self._columns = job, script, settings, columns
        self._result, self._ordered = Result(job.name, seed), False

    def run(
        self,
        seconds: float,
        kinds: Sequence[str],
        restart: str = "",
        *,
        ordered: bool = False,
        folder: Path | None = None,
    ) -> Result:
        """Raises where a drill would take something away from the job itself."""
        begun, result, self._ordered = time.monotonic(), self._result, ordered
        refuse_consuming(self._job)
        result.mistakes += look_at_plan(self._job)
        if any(each.kind == GUARANTEE for each in result.mistakes):
            result.not_judged.append("the job was not run: it does not ask for exactly-once, or cannot give it")
            return result
        home = Path(tempfile.mkdtemp(prefix="penstock-drill-")) if folder is None else folder
        drilled, calm = (JobRun(self._script, self._job.name, home / name, self._settings) for name in ("hard", "calm"))
        schedule = Schedule(result.seed, [*kinds, *(["restart"] if restart else [])])
        sinks = [sink.redirected(run.suffix) for sink in self._job._sinks.values() for run in (drilled, calm)]
        result.left_behind = [sink.describe() for sink in sinks]
        result.drilled = ran = drilled.run(seconds * _SHARE, schedule, restart)
        if ran.error:
            result.mistakes.append(Mistake(FAILED, self._job.name, ran.error))
        elif ran.ended == "hung" or not ran.completed():
            result.not_judged.append(f"the job completed no epoch, or did not end, in {ran.seconds:g} s: see --seconds")
        else:
            self._audit(drilled)
            left = seconds - (time.monotonic() - begun)
            result.calm = calm_run(drilled, ran, calm, max(left, _LEAST_SECONDS))
            self._compare(drilled, calm)
        self._effects(drilled, calm)
        if not ran.faults:
            result.not_judged.append("no fault struck before the input ended: give it more rows, or smaller epochs")
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)
        return result

    def _audit(self, drilled: JobRun) -> None:
        """Beside the ledger."""
        ledgers = drilled.ledgers()
        sinks = {uid: sink.redirected(drilled.suffix) for uid, sink in self._job._sinks.items()}
        findings = Audit(ledgers, sinks, self._columns).run().findings
        decided = [writer for query in ledgers.queries for writer in decided_of(query)[0]]
        for finding in findings:
            where = f"sink {finding.sink}"
            if finding.kind in ANOMALIES:
                kind = TORN if is_torn(finding, decided) else _OF_AUDIT.get(finding.kind, finding.kind)
                at = "" if finding.epoch is None else f"epoch {finding.epoch}: "
                self._result.mistakes.append(Mistake(kind, where, f"{at}{finding.why}"))
            else:
                self._result.not_judged.append(f"{where} beside the ledger: {finding.why}")

    def _compare(self, drilled: JobRun, calm: JobRun) -> None:
        """Beside the calm run."""
        if self._result.calm.ended not in ("done", "stopped") or not self._result.calm.completed():
            self._result.not_judged.append(f"the calm run did not end in its time: {self._result.calm.error}")
            return
        others = {query.uid: query for query in calm.ledgers().queries}
        guesses = suspects(self._job)
        for query in drilled.ledgers().queries:
            for uid in self._job._plans[query.uid].sinks:
                self._compare_sink(query, others.get(query.uid), uid, (drilled, calm), guesses[query.uid])

    def _compare_sink(
        self, query: QueryLedger, other: QueryLedger | None, uid: str, runs: Sequence[JobRun], guess: str
    ) -> None:
        where, sink = f"sink {uid}", self._job._sinks[uid]
        actual, expected = (rows_of(sink.redirected(run.suffix)) for run in runs)
        if other is None or actual is None or expected is None:
            self._result.not_judged.append(f"{where} beside the calm run: there is no reader for this kind of sink")
            return
        actual = actual if actual.num_columns else expected.schema.empty_table()  # no file, and so no columns
        expected = expected if expected.num_columns else actual.schema.empty_table()
        self._result.rows[uid] = actual.num_rows
        cut = keeps_state(query.log.storage) and not same_cuts(query.log, other.log)
        differences = [*differ(expected, actual, guess), *(self._order(expected, actual) if self._ordered else ())]
        if differences and cut:
            self._result.not_judged.append(
                f"{where} beside the calm run: the query keeps state, and its rows depend on where epochs are cut"
            )
        else:
            self._result.mistakes += [Mistake(kind, where, why, examples) for kind, why, examples in differences]

    @staticmethod
    def _order(expected: pa.Table, actual: pa.Table) -> Iterator[tuple[str, str, Sequence[str]]]:
        if expected.column_names != ["key", "value"]:
            return
        sides = [list(zip(*side.to_pydict().values(), strict=True)) for side in (expected, actual)]
        once = {row for row, times in Counter(sides[0]).items() if times == 1 and row[0] is not None}
        numbers = {row: number for number, row in enumerate(sides[0]) if row in once}
        rows = [[Row(row[0], numbers[row]) for row in side if row in numbers] for side in sides]
        for anomaly in find_anomalies(*rows, complete=False):
            if anomaly.kind == ORDER:
                yield ORDER, f"{anomaly.count} rows come before one of the same key that was first", anomaly.examples

    def _effects(self, *runs: JobRun) -> None:
        for effect in effects_of(*runs):
            function, what = f"function {effect['function']}", effect["what"]
            if effect["kind"] == CONNECTS:
                self._result.not_judged.append(f"{function} {what}: the drill does not see what it does there")
            else:
                why = f"{what}, which no epoch takes back: a replay does it again"
                self._result.mistakes.append(Mistake(SIDE_EFFECT, function, why))


def is_torn(finding: Finding, decided: Iterable[Decided]) -> bool:
    """Whether rows of an epoch are lost of which others are visible."""
    same = [each for each in decided if each.query == finding.query and each.epoch == finding.epoch]
    return finding.kind == LOST and sum(each.rows for each in same) > finding.rows


def differ(expected: pa.Table, actual: pa.Table, guess: str) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The kind, the reason and examples of each way in which two runs over the same input differ."""
    verdict = _compare(expected, actual)
    if verdict is None:
        yield OTHER_ROWS, f"the columns are others than those of a calm run over the same input: {guess}", ()
        return
    shown = {kind: [str(value)[:200] for value in values] for kind, values in verdict.examples.items()}
    lost, unexpected = verdict.lost, verdict.unexpected
    if lost and unexpected:
        both = [f"{left}, calm: {right}" for left, right in zip(shown["unexpected"], shown["lost"], strict=False)]
        names = other_columns(expected, actual)
        at = f" in {', '.join(names)}" if names else ""
        why = f"{max(lost, unexpected)} rows are others{at} than those of a calm run over the same input: {guess}"
        yield OTHER_ROWS, why, both[:EXAMPLES]
    elif lost:
        yield "lost", f"{lost} rows of a calm run over the same input are not there: {guess}", shown["lost"]
    elif unexpected:
        why = f"{unexpected} rows are there that a calm run over the same input does not give: {guess}"
        yield OTHER_ROWS, why, shown["unexpected"]
    if verdict.duplicated:
        why = f"{verdict.duplicated} rows are there more often than in a calm run over the same input: {guess}"
        yield DOUBLED, why, shown["duplicated"]


def _compare(expected: pa.Table, actual: pa.Table) -> Verdict | None:
    try:
        return compare(expected, actual)
    except SchemaMismatch:
        return None


def other_columns(expected: pa.Table, actual: pa.Table) -> list[str]:
    """Columns without which the rows are the same; of JSON objects their fields."""
    sides = [_fields(side) for side in (expected, actual)]
    names = sides[0].column_names
    if names != sides[1].column_names or len(names) < 2:
        return []
    verdicts = {name: _compare(*(side.drop_columns([name]) for side in sides)) for name in names}
    return [name for name, verdict in verdicts.items() if verdict is not None and verdict.ok]


def _fields(table: pa.Table) -> pa.Table:
    values = table.column("value") if "value" in table.column_names and table.num_columns <= 2 else None
    if values is not None:
        with suppress(pa.ArrowException, TypeError):
            lines = b"\n".join(value for value in values.cast(pa.large_binary()).to_pylist() if value is not None)
            return pj.read_json(pa.BufferReader(lines))
    return table


def page_of(result: Result) -> str:
    """The report as a page of its own: nothing in it is loaded from elsewhere."""
    facts = json.dumps(result.to_dict()).replace("<", "\\u003c")
    return Path(__file__).with_name("report.html").read_text("utf-8").replace("/*facts*/", facts)
