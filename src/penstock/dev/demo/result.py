"""The outputs as an ordinary reader gets them, what they should be, and the verdict on them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.dev.demo.job import ACCOUNTS, output_folder
from penstock.testing.oracle import (
    AtomicityVerdict,
    Observation,
    OrderVerdict,
    Verdict,
    compare,
    epoch_atomicity,
    per_key_order,
)

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
        self._end.set()
        self.join()

    def end(self) -> None:
        """One last look; raises what went wrong in any of them."""
        self.cancel()
        if self._error is not None:
            raise self._error
        self.look()

    def look(self) -> None:
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
class TotalsVerdict:
    """The running totals of each account, as they were written one after the other."""

    rows: int
    accounts: int  # accounts whose last total is the true one
    wrong: int  # rows that are not the true total of the first n payments of their account
    repeated: int  # a second row for the same account and n
    unfinished: int  # accounts whose last total is not there
    order: OrderVerdict

    @property
    def ok(self) -> bool:
        return not (self.wrong or self.repeated or self.unfinished) and self.order.ok

    def lines(self) -> list[str]:
        head = f"{self.rows:,} running totals of {ACCOUNTS} accounts"
        if self.ok:
            return [f"{head}: each one true, in order, and the last ones complete"]
        return [
            f"{head}: {self.wrong:,} wrong, {self.repeated:,} repeated, {self.unfinished:,} accounts incomplete",
            *(() if self.order.ok else self.order.lines()),
        ]


class Truth:
    """The first `rows` payments, in numpy. It shares nothing with the generator but the numbers, and uses neither Spark
    nor `DataGenSource`: a fault of the generator, of the plan or of a sink shows as a difference. All arithmetic is on
    integers, so both sides are exact."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._ids = np.arange(rows, dtype=np.int64)
        self._codes = (self._ids * 7919 + self._ids // 97) % ACCOUNTS
        self._amounts = (self._ids * 48271 + 11) % 10007
        self._names = np.array([f"acc-{code:04d}" for code in range(ACCOUNTS)])

    @cached_property
    def payments(self) -> pa.Table:
        return pa.table({"id": self._ids, "account": pa.array(self._names[self._codes]), "amount": self._amounts})

    def judge_totals(self, rows: pa.Table) -> TotalsVerdict:
        """Whether `rows` (account, n, total), in the order each account's rows were written, are true running totals.
        An account's payments arrive in the order of their ids, whatever the epochs were. So after n of them its total
        is the sum of its first n payments, and nothing else: a lost or repeated payment makes every later row wrong."""
        codes = pc.fill_null(pc.index_in(rows.column("account"), value_set=pa.array(self._names)), -1).to_numpy()
        n = rows.column("n").to_numpy()
        totals = rows.column("total").to_numpy()
        sizes = np.bincount(self._codes, minlength=ACCOUNTS)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        by_account = np.argsort(self._codes, kind="stable")
        running = np.concatenate([[0], np.cumsum(self._amounts[by_account])])

        known = (codes >= 0) & (n >= 1) & (n <= sizes[codes])
        first, count = starts[np.where(known, codes, 0)], np.where(known, n, 0)
        true = known & (totals == running[first + count] - running[first])
        complete = np.unique(codes[true & (n == sizes[codes])])
        pairs = np.unique(np.stack([codes, n]), axis=1).shape[1] if len(codes) else 0
        return TotalsVerdict(
            rows=len(codes),
            accounts=len(complete),
            wrong=int((~true).sum()),
            repeated=len(codes) - pairs,
            unfinished=int((sizes > 0).sum()) - len(complete),
            order=per_key_order(codes, n),
        )


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
        parts = (("payments", self.payments), ("totals", self.totals), ("readers", self.atomicity))
        lines = [f"{name}: {line}" for name, verdict in parts if verdict is not None for line in verdict.lines()]
        seconds = ", ".join(f"{recovery.seconds:.1f}" for recovery in self.recoveries) or "none"
        kills = len(self.killed_after)
        lines.append(f"{kills} kills, {len(self.recoveries)} recoveries ({seconds} s), {self.epochs:,} epochs")
        where = f" Everything is kept in {self.folder}." if self.folder else ""
        closing = f"This run is not as it should be (seed {self.seed})."
        if self.ok:
            closing = f"Nothing lost, nothing twice, nothing wrong, in {self.seconds:.0f} s (seed {self.seed})."
        return [*lines, *([self.error] if self.error else []), closing + where]

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
        compare(truth.payments, outputs.read("payments").select(truth.payments.column_names)),
        truth.judge_totals(outputs.read("totals")),
        epoch_atomicity(outputs.looks, outputs.sizes(), commits),
    )
