"""Rows of a number and a name, for the contract of sinks that take any columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from penstock.testing.sink_contract import SinkHarness

TEXT = ["plain", None, "", "Zażółć gęślą jaźń", "日本語", "🚀 \u2028 line", 'comma, "quote"']


class NamedRows(SinkHarness):
    """`text` is what must come back as it was, however odd."""

    text: ClassVar[Sequence[str | None]] = TEXT

    def rows(self, n: int, start: int = 0) -> pa.RecordBatch:
        numbers = range(start, start + n)
        return pa.RecordBatch.from_pydict({"id": list(numbers), "name": [f"row {i}" for i in numbers]})

    def special(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [*range(len(self.text) - 1), None], "name": self.text})

    def large(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": [1], "name": ["x" * 500_000]})
