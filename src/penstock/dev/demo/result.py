"""The outputs as an ordinary reader gets them, and the verdict on them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.dev.demo.job import output_folder
from penstock.dev.demo.truth import TotalsVerdict, Truth
from penstock.testing.oracle import AtomicityVerdict, Observation, Verdict, epoch_atomicity

if TYPE_CHECKING:
    from penstock.dev.demo.plan import Recovery
    from penstock.testing.oracle import Commits

LOOK_SECONDS = 0.2  # between two looks of the concurrent reader: several in every epoch would only slow the job down

_EPOCH = re.compile(r"-e(\d+)-")
#: The two outputs, which are the names of their queries too.
_SCHEMAS = {
    "payments": pa.schema([("id", pa.int64()), ("account", pa.string()), ("amount", pa.int64())]),
    "totals": pa.schema([("account", pa.string()), ("n", pa.int64()), ("total", pa.int64())]),
}


class Outputs(Thread):
    """Parquet in two folders, read as any consumer would, by listing them. The thread looks at them while the job runs
    and is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="demo-reader", daemon=True)
        self._folder, self._end = folder, Flag()
        self._error: Exception | None = None
        self.looks: list[Observation] = []
        self._sizes: dict[Path, int] = {}  # a visible file never changes, so one look into it is enough

    def run(self) -> None:
        try:
            while not self._end.wait(LOOK_SECONDS):
                self.look()
        except Exception as error:  # raised in `end`: a reader that cannot read is a finding
            self._error = error

    def cancel(self) -> None:
        """No more looks."""
        self._end.set()
        self.join()

    def end(self) -> None:
        """One last look; raises what went wrong in any of them."""
        self.cancel()
        if self._error is not None:
            raise self._error
        self.look()

    def look(self) -> None:
        """Note what a reader sees of the outputs now."""
        for name in _SCHEMAS:
            began = time.time()
            files = self._list(name)
            took = time.time() - began
            self.looks.append(Observation(began, {name: self._count(files)}, took=took))

    def sizes(self) -> dict[str, dict[int, int]]:
        """By output, how many rows each epoch put there."""
        return {name: self._count(self._list(name)) for name in _SCHEMAS}

    def read(self, name: str) -> pa.Table:
        """Everything, in the order of the epochs."""
        columns = _SCHEMAS[name].names
        tables = [pq.ParquetFile(file).read(columns=columns).select(columns) for file in self._list(name)]
        return pa.concat_tables([_SCHEMAS[name].empty_table(), *tables], promote_options="permissive")

    def _list(self, name: str) -> list[Path]:
        # By name is by epoch: the order in which the files were written.
        return sorted(output_folder(self._folder, name).glob("[!_.]*.parquet"))

    def _count(self, files: Sequence[Path]) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for file in files:
            if file not in self._sizes:
                self._sizes[file] = pq.read_metadata(file).num_rows
            match = _EPOCH.search(file.name)
            counts[int(match[1]) if match else -1] += self._sizes[file]
        return dict(counts)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's answer. `ok` is False if anything was lost, duplicated or wrong, or could not be found out."""

    rows_in: int
    seed: int
    killed_after: Sequence[str] = ()
    recoveries: Sequence[Recovery] = ()
    epochs: int = 0
    seconds: float = 0.0
    payments: Verdict | None = None
    totals: TotalsVerdict | None = None
    atomicity: AtomicityVerdict | None = None
    error: str = ""
    log_tail: Sequence[str] = field(default=(), repr=False)
    folder: str = ""

    @property
    def ok(self) -> bool:
        verdicts = (self.payments, self.totals, self.atomicity)
        return not self.error and all(verdict is not None and verdict.ok for verdict in verdicts)

    def lines(self) -> list[str]:
        """For people."""
        parts = (("payments", self.payments), ("totals", self.totals), ("readers", self.atomicity))
        lines = [f"{name}: {line}" for name, verdict in parts if verdict is not None for line in verdict.lines()]
        seconds = ", ".join(f"{recovery.seconds:.1f}" for recovery in self.recoveries) or "none"
        kills = len(self.killed_after)
        lines.append(f"{kills} kills, {len(self.recoveries)} recoveries ({seconds} s), {self.epochs:,} epochs")
        return [*lines, *([self.error] if self.error else [])]

    def to_dict(self) -> dict[str, Any]:
        payments, totals, atomicity = self.payments, self.totals, self.atomicity
        return {
            "ok": self.ok,
            "rows_in": self.rows_in,
            "rows_out": payments.found if payments else None,
            "lost": payments.lost if payments else None,
            "duplicated": payments.duplicated if payments else None,
            "unexpected": payments.unexpected if payments else None,
            "totals_accounts": totals.accounts if totals else None,
            "totals_wrong": totals.wrong + totals.unfinished if totals else None,
            "totals_duplicated": totals.repeated if totals else None,
            "kills": len(self.killed_after),
            "killed_after": list(self.killed_after),
            "recoveries": len(self.recoveries),
            "recovery_seconds": [round(recovery.seconds, 3) for recovery in self.recoveries],
            "recovery_actions": [list(recovery.actions) for recovery in self.recoveries],
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "rows_per_second": round(self.rows_in / self.seconds) if self.seconds else 0,
            "seed": self.seed,
            "atomicity": atomicity.to_dict() if atomicity else None,
            "error": self.error or None,
            "log_tail": list(self.log_tail),
            "folder": self.folder or None,
        }


def judge(rows: int, outputs: Outputs, commits: Commits) -> tuple[Verdict, TotalsVerdict, AtomicityVerdict]:
    """The three verdicts on a run of `rows` payments. `commits` holds the time span of each epoch's commit."""
    truth = Truth(rows)
    return (
        truth.judge_payments(outputs.read("payments")),
        truth.judge_totals(outputs.read("totals")),
        epoch_atomicity(outputs.looks, outputs.sizes(), commits),
    )
