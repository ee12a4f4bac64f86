"""The definition of the demo's payments, twice: in SQL for the generator, in numpy for the judge.

The two share nothing but the numbers in them, and the judge uses neither Spark nor `DataGenSource`: a fault of the
generator, of the plan or of a sink shows as a difference. All arithmetic is on integers, so both sides are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.testing.oracle import OrderVerdict, Verdict, compare, per_key_order

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCOUNTS = 500

#: For the generator. Accounts come in no simple order, and an epoch of a thousand rows has most of them.
COLUMNS: Mapping[str, str] = {
    "id": "id",
    "account": f"concat('acc-', lpad(cast(pmod(id * 7919 + id div 97, {ACCOUNTS}) AS string), 4, '0'))",
    "amount": "pmod(id * 48271 + 11, 10007)",
    "ts": "timestamp_millis(1767225600000 + id)",
}


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
    """The first `rows` payments and everything that follows from them."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._ids = np.arange(rows, dtype=np.int64)
        self._codes = (self._ids * 7919 + self._ids // 97) % ACCOUNTS
        self._amounts = (self._ids * 48271 + 11) % 10007
        self._names = np.array([f"acc-{code:04d}" for code in range(ACCOUNTS)])

    @cached_property
    def payments(self) -> pa.Table:
        """Every payment: id, account, amount."""
        return pa.table({"id": self._ids, "account": pa.array(self._names[self._codes]), "amount": self._amounts})

    @cached_property
    def last_totals(self) -> dict[str, tuple[int, int]]:
        """By account, how many payments it has and their sum."""
        counts = np.bincount(self._codes, minlength=ACCOUNTS)
        sums = np.zeros(ACCOUNTS, dtype=np.int64)
        np.add.at(sums, self._codes, self._amounts)
        return {str(self._names[at]): (int(counts[at]), int(sums[at])) for at in np.flatnonzero(counts)}

    def judge_payments(self, rows: pa.Table) -> Verdict:
        """Whether `rows` (id, account, amount) are every payment, exactly once, unaltered."""
        return compare(self.payments, rows.select(["id", "account", "amount"]))

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
