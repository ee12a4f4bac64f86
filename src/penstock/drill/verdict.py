"""What a drill has found: mistakes of the job, each with examples, and what could not be judged.

What is not proven is no accusation: it is not judged. docs/how-to/prove-your-job.md says what is found by what.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from penstock.audit.compare import ANOMALIES, Decided, Finding
from penstock.audit.report import Audit, decided_of
from penstock.audit.stores import rows_of
from penstock.checkpoint import layout
from penstock.contracts.guarantees import Guarantee
from penstock.drill.effects import CONNECTS
from penstock.drill.run import JobRun, Ran, Schedule, calm_run, effects_of, same_cuts
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.job.job import Job
from penstock.spark.lane_plan import changing_functions, losing_options, python_functions, works_on_batches
from penstock.testing.anomalies import ABORTED, DUPLICATE, LOST, ORDER, TORN, Row, find_anomalies
from penstock.testing.oracle import EXAMPLES, Verdict, compare

OTHER_ROWS, SIDE_EFFECT, NOT_REPEATABLE = "other rows", "side effect", "not repeatable"
GUARANTEE, FAILED = "guarantee", "job failed"
_OF_AUDIT = {LOST: "lost", DUPLICATE: "doubled", ABORTED: "never decided"}
_SHARE = 0.55  # of the time, for the faults; the rest is for the end, the audit and the calm run
_LEAST_SECONDS = 30.0


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
        runs = {"drilled": self.drilled.to_dict(), "calm": self.calm.to_dict()}
        return {**asdict(self), "status": self.status, "verdict": self.verdict, **runs}


def look_at_plan(job: Job) -> Iterator[Mistake]:
    """What is wrong whatever happens. Raises for sources whose rows are gone for the job once a drill has read them."""
    source: Any
    for uid, source in job._sources.items():
        if getattr(source, "cleans", False) or getattr(source, "journal", None) is not None:
            raise ConfigurationError(
                f"Source {uid!r} cannot be drilled: what the drill reads, the job would not read any more.",
                safe="nothing was run.",
                to_do="drill the job on a copy of its input: without cleanSource, over files instead of a socket.",
            )
    for query, chain in job.chains().items():
        for link in chain.links:
            if link.guarantee is not Guarantee.EXACTLY_ONCE:
                yield Mistake(GUARANTEE, f"{link.kind} {link.name}", f"{link.guarantee}: {link.because}; {link.lift}")
        frame = job._plans[query].frame
        for option, value in losing_options(frame):
            yield Mistake(GUARANTEE, f"query {query}", f"{option}={value} lets Spark skip rows it should have read")
        for name in changing_functions(frame):
            yield Mistake(NOT_REPEATABLE, f"query {query}", f"{name} gives other values when an epoch is run again")


class Drill:
    """Of one job; `columns` are what it writes into each sink, where that is known."""

    def __init__(self, job: Job, script: Path, settings: Mapping[str, str], columns: Mapping[str, Any], seed: int):
        self._job, self._script, self._settings, self._columns = job, script, settings, columns
        self._result, self._ordered = Result(job.name, seed), False

    def run(
        self, seconds: float, kinds: Sequence[str], restart: str = "", ordered: bool = False, folder: Path | None = None
    ) -> Result:
        """Raises where a drill would take something away from the job itself."""
        begun, result, self._ordered = time.monotonic(), self._result, ordered
        result.mistakes += look_at_plan(self._job)
        if any(each.kind == GUARANTEE for each in result.mistakes):
            result.not_judged.append("the job was not run: it does not ask for exactly-once, or cannot give it")
            return result
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="drill-", dir=folder))  # its name is that of the outputs, too
        hard, calm = (JobRun(self._script, self._job.name, home / name, self._settings) for name in ("hard", "calm"))
        sinks = [sink.redirected(run.suffix) for sink in self._job._sinks.values() for run in (hard, calm)]
        result.left_behind = [sink.describe() for sink in sinks]
        schedule = Schedule(result.seed, [*kinds, *(["restart"] if restart else [])])
        result.drilled = ran = hard.run(seconds * _SHARE, schedule, restart)
        if ran.ended == "failed":
            result.mistakes.append(Mistake(FAILED, self._job.name, ran.error))
        elif ran.ended == "hung" or not ran.completed():
            result.not_judged.append(
                f"no epoch completed in {ran.seconds:g} s, or no end: {ran.error or 'see --seconds'}"
            )
        else:
            waiting = self._audit(hard)
            if any(plan.latency for plan in self._job._plans.values()):
                result.not_judged.append("there is no calm run of a job in real time")
            else:
                result.calm = calm_run(hard, ran, calm, max(seconds - (time.monotonic() - begun), _LEAST_SECONDS))
                self._compare(hard, calm, waiting)
        for effect in effects_of(hard, calm):
            function, what = f"function {effect['function']}", effect["what"]
            if effect["kind"] == CONNECTS:
                result.not_judged.append(f"{function} {what}: the drill does not see what it does there")
            else:
                why = f"{what}, which no epoch takes back: a replay does it again"
                result.mistakes.append(Mistake(SIDE_EFFECT, function, why))
        if not ran.faults:
            result.not_judged.append("no fault struck before the input ended: give it more rows, or smaller epochs")
        if folder is None:
            shutil.rmtree(home, ignore_errors=True)
        return result

    def _audit(self, hard: JobRun) -> set[str]:
        """Beside the ledger. Returns the sinks of which epochs wait to become visible, as in an in-flight log."""
        ledgers = hard.ledgers()
        sinks = {uid: sink.redirected(hard.suffix) for uid, sink in self._job._sinks.items()}
        decided = [writer for query in ledgers.queries for writer in decided_of(query)[0]]
        report = Audit(ledgers, sinks, self._columns).run()
        for finding in report.findings:
            if finding.kind in ANOMALIES:
                kind = TORN if is_torn(finding, decided) else _OF_AUDIT.get(finding.kind, finding.kind)
                at = "" if finding.epoch is None else f"epoch {finding.epoch}: "
                self._result.mistakes.append(Mistake(kind, f"sink {finding.sink}", f"{at}{finding.why}"))
            else:
                self._result.not_judged.append(f"sink {finding.sink} beside the ledger: {finding.why}")
        return {entry["sink"] for entry in report.sinks if entry["not_yet"]}

    def _compare(self, hard: JobRun, calm: JobRun, waiting: Collection[str]) -> None:
        if self._result.calm.ended != "done":
            self._result.not_judged.append(f"the calm run did not end in its time: {self._result.calm.error}")
            return
        logs = {query.uid: query.log for query in calm.ledgers().queries}
        for query in (each for each in hard.ledgers().queries if each.log.next_epoch()[0]):
            plan, keeps_state = self._job._plans[query.uid], bool(query.log.storage.list(layout.STATE))
            by_epoch = keeps_state or not plan.as_it_is or works_on_batches(plan.frame)
            open_question = by_epoch and not same_cuts(query.log, logs[query.uid])
            for uid, sink in plan.sinks.items():
                actual, expected = (rows_of(sink.redirected(run.suffix)) for run in (hard, calm))
                if actual is None or expected is None or uid in waiting:
                    why = "epochs wait to become visible" if uid in waiting else "this kind of sink has no reader"
                    self._result.not_judged.append(f"sink {uid} beside the calm run: {why}")
                    continue
                self._result.rows[uid] = actual.num_rows
                found = list(differ(expected, actual, suspects(self._job, query.uid)))
                found += list(out_of_order(expected, actual)) if self._ordered else []
                if found and open_question:
                    why = "rows differ, as they may where state or batches depend on where epochs are cut"
                    self._result.not_judged.append(f"sink {uid} beside the calm run: {why}")
                else:
                    self._result.mistakes += [Mistake(kind, f"sink {uid}", why, some) for kind, why, some in found]


def suspects(job: Job, query: str) -> str:
    """What a difference from the calm run can come from."""
    plan = job._plans[query]
    functions = [f"the Python function {name}" for name in python_functions(plan.frame)]
    claims = [uid for uid, source in plan.sources.items() if getattr(source, "replayable", False)]
    claimed = [f"source {uid}, which the program calls replayable" for uid in claims]
    return " or ".join(functions + claimed) or "the plan"


def is_torn(finding: Finding, decided: Iterable[Decided]) -> bool:
    """Whether rows of an epoch are lost of which others are visible."""
    same = [each for each in decided if each.query == finding.query and each.epoch == finding.epoch]
    return finding.kind == LOST and sum(each.rows for each in same) > finding.rows


def differ(expected: pa.Table, actual: pa.Table, guess: str) -> Iterator[tuple[str, str, Sequence[str]]]:
    """In what two runs over the same input differ: kind, reason, examples."""
    actual = actual if actual.num_columns else expected.schema.empty_table()  # no file, and so no columns
    expected = expected if expected.num_columns else actual.schema.empty_table()
    verdict = _compare(expected, actual)
    if verdict is None:
        yield OTHER_ROWS, f"the columns are not those of a calm run over the same input: {guess}", ()
        return
    shown = {kind: [str(value)[:200] for value in values] for kind, values in verdict.examples.items()}
    if verdict.lost and verdict.unexpected:
        both = [f"{left}, calm: {right}" for left, right in zip(shown["unexpected"], shown["lost"], strict=False)]
        names = " and ".join(other_columns(expected, actual))
        why = f"{max(verdict.lost, verdict.unexpected)} rows differ{names and f' in {names}'}"
        yield OTHER_ROWS, f"{why} from those of a calm run over the same input: {guess}", both[:EXAMPLES]
    elif verdict.lost:
        yield "lost", f"{verdict.lost} rows of a calm run over the same input are not there: {guess}", shown["lost"]
    elif verdict.unexpected:
        why = f"{verdict.unexpected} rows are there that a calm run over the same input does not give: {guess}"
        yield OTHER_ROWS, why, shown["unexpected"]
    if verdict.duplicated:
        why = f"{verdict.duplicated} rows are there more often than in a calm run over the same input: {guess}"
        yield "doubled", why, shown["duplicated"]


def out_of_order(expected: pa.Table, actual: pa.Table) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Rows of a key that come in another order, of those that are there once."""
    if expected.column_names != ["key", "value"]:
        return
    sides = [list(zip(*side.to_pydict().values(), strict=True)) for side in (expected, actual)]
    once = {row for row, times in Counter(sides[0]).items() if times == 1 and row[0] is not None}
    numbers = {row: number for number, row in enumerate(sides[0]) if row in once}
    rows = [[Row(row[0], numbers[row]) for row in side if row in numbers] for side in sides]
    for anomaly in find_anomalies(*rows, complete=False):
        if anomaly.kind == ORDER:
            yield ORDER, f"{anomaly.count} rows come before one of the same key that was first", anomaly.examples


def other_columns(expected: pa.Table, actual: pa.Table) -> list[str]:
    """Columns without which the rows are the same; of JSON objects their fields."""
    left, right = _fields(expected), _fields(actual)
    if left.num_columns < 2 or left.column_names != right.column_names:
        return []
    verdicts = {name: _compare(left.drop_columns([name]), right.drop_columns([name])) for name in left.column_names}
    return [name for name, verdict in verdicts.items() if verdict is not None and verdict.ok]


def _compare(expected: pa.Table, actual: pa.Table) -> Verdict | None:
    """None for other columns. The last digits of floats do not count: those of a sum depend on the order of rows."""
    with suppress(SchemaMismatch):
        verdict = compare(expected, actual)
        floats = not verdict.ok and any(map(pa.types.is_floating, expected.schema.types))
        return compare(_rounded(expected), _rounded(actual)) if floats else verdict
    return None


def _rounded(table: pa.Table) -> pa.Table:
    for at, column in enumerate(table.schema):
        if pa.types.is_floating(column.type):
            texts = [None if value is None else f"{value:.12g}" for value in table.column(at).to_pylist()]
            table = table.set_column(at, column.name, pa.array(texts, pa.string()))
    return table


def _fields(table: pa.Table) -> pa.Table:
    if "value" in table.column_names and table.num_columns <= 2:
        with suppress(pa.ArrowException, TypeError):
            lines = (value for value in table.column("value").cast(pa.large_binary()).to_pylist() if value is not None)
            return pj.read_json(pa.BufferReader(b"\n".join(lines)))
    return table


def page_of(result: Result) -> str:
    """The report as a page of its own: nothing in it is loaded from elsewhere."""
    facts = json.dumps(result.to_dict()).replace("<", "\\u003c")
    return Path(__file__).with_name("report.html").read_text("utf-8").replace("/*facts*/", facts)
