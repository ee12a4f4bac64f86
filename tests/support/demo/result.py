"""The outputs as an ordinary reader gets them, what they should be, and the verdict on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.testing.oracle import compare
from tests.support.demo.job import ACCOUNTS, output_folder

if TYPE_CHECKING:
    from penstock.testing.oracle import Verdict

#: The two outputs, which are the names of their queries too.
_SCHEMAS = {
    "payments": pa.schema([("id", pa.int64()), ("account", pa.string()), ("amount", pa.int64())]),
    "totals": pa.schema([("account", pa.string()), ("n", pa.int64()), ("total", pa.int64())]),
}


def read_output(folder: Path, name: str) -> pa.Table:
    """Everything in an output, as any consumer reads it, by listing. By name is by epoch: the order of writing."""
    files, columns = sorted(output_folder(folder, name).glob("[!_.]*.parquet")), _SCHEMAS[name].names
    tables = [pq.ParquetFile(file).read(columns=columns).select(columns) for file in files]
    return pa.concat_tables([_SCHEMAS[name].empty_table(), *tables], promote_options="permissive")


# The truth shares nothing with the generator but the numbers, and uses neither Spark nor `DataGenSource`: a fault of
# the generator, of the plan or of a sink shows as a difference. All arithmetic is on integers, so both sides are exact.


def true_payments(rows: int) -> pa.Table:
    """The first `rows` payments."""
    ids = np.arange(rows, dtype=np.int64)
    names = np.array([f"acc-{code:04d}" for code in range(ACCOUNTS)])
    accounts = names[(ids * 7919 + ids // 97) % ACCOUNTS]
    return pa.table({"id": ids, "account": pa.array(accounts), "amount": (ids * 48271 + 11) % 10007})


def true_totals(payments: pa.Table, totals: pa.Table) -> pa.Table:
    """The running totals (account, n, total) that `totals` must hold, each once: those it has, by account and n, and
    the last one of each account. An account's payments arrive in the order of their ids, whatever the epochs were. So
    after n of them its total is the sum of its first n payments, and nothing else: a lost or repeated payment makes
    every later total wrong."""
    frame = payments.to_pandas()
    by_account = frame.groupby("account")
    frame["n"], frame["total"] = by_account.cumcount() + 1, by_account["amount"].cumsum()
    there = set(zip(totals.column("account").to_pylist(), totals.column("n").to_pylist(), strict=True))
    shown = np.array([pair in there for pair in zip(frame["account"], frame["n"], strict=True)], dtype=bool)
    last = by_account["amount"].transform("size") == frame["n"]
    return pa.Table.from_pandas(frame.loc[last | shown], _SCHEMAS["totals"], preserve_index=False)


Verdicts = Mapping[str, "Verdict"]


def judge(rows: int, folder: Path) -> Verdicts:
    """The verdicts on a run of `rows` payments, whose outputs are in `folder`."""
    payments, totals = true_payments(rows), read_output(folder, "totals")
    return {
        "payments": compare(payments, read_output(folder, "payments")),
        "totals": compare(true_totals(payments, totals), totals),
    }


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's answer. `ok` is False if anything was lost, duplicated or wrong, or could not be found out."""

    rows: int
    seed: int
    killed_after: Sequence[str] = ()
    recovery_seconds: Sequence[float] = ()
    epochs: int = 0
    seconds: float = 0.0
    verdicts: Verdicts = field(default_factory=dict)
    error: str | None = None
    folder: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts.values())

    def lines(self) -> list[str]:
        lines = [f"{name}: {line}" for name, verdict in self.verdicts.items() for line in verdict.lines()]
        seconds = ", ".join(f"{recovery:.1f}" for recovery in self.recovery_seconds) or "none"
        kills, recoveries = len(self.killed_after), len(self.recovery_seconds)
        lines.append(f"{kills} kills, {recoveries} recoveries ({seconds} s), {self.epochs:,} epochs")
        where = f" Everything is kept in {self.folder}." if self.folder else ""
        closing = f"This run is not as it should be (seed {self.seed})."
        if self.ok:
            closing = f"Nothing lost, nothing twice, nothing wrong, in {self.seconds:.0f} s (seed {self.seed})."
        return [*lines, *filter(None, [self.error]), closing + where]

    def to_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "verdicts"}
        return {"ok": self.ok, **fields, **{name: verdict.to_dict() for name, verdict in self.verdicts.items()}}
