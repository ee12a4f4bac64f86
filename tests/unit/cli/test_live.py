"""`penstock run` in a terminal: what a row says, and that lines of other processes scroll above the rows."""

from __future__ import annotations

from typing import Any

from penstock.cli.show import JobFacts, LiveRows, rows_of
from penstock.ops.process.registry import Entry, State, now_ms

ENTRY = Entry("a" * 32, "payments", State.RUNNING)


def query(**more: Any) -> dict[str, Any]:
    return {"uid": "out", "epoch": 41, "phase": "commit", "rows_per_second": 48_200, "lag": 9100, **more}


def test_a_row_says_epoch_rate_lag_and_age() -> None:
    slow = query(uid="totals", epoch=None, phase="idle", rows_per_second=None, lag=None, committed=None)
    rows = rows_of(JobFacts(ENTRY, queries=[query(committed=now_ms() - 3_600_000), slow]))
    assert rows == [
        "out     epoch 41 commit  48,200 rows/s  lag 9,100  1h 0m since the last commit",
        "totals  epoch – idle  0 rows/s  lag –  no commit",
    ]
    assert rows_of(JobFacts(ENTRY, note="It\x1b[2J restarts.")) == ["payments  RUNNING  It�[2J restarts."]


class Screen:
    """As much of a terminal as the rows use: a scroll region, a saved cursor, erasing."""

    def __init__(self, columns: int, height: int) -> None:
        self.columns, self.height = columns, height
        self.lines = [""] * height
        self.row, self.bottom, self.saved = 0, height - 1, 0

    def write(self, text: str) -> None:
        place = 0
        while place < len(text):
            character = text[place]
            if character == "\n":
                self._feed()
                place += 1
            elif character == "\x1b" and text[place + 1] in "78":
                self.saved, self.row = (self.row, self.row) if text[place + 1] == "7" else (self.saved, self.saved)
                place += 2
            elif character == "\x1b":
                end = next(index for index in range(place + 2, len(text)) if text[index].isalpha())
                self._control(text[end], text[place + 2 : end])
                place = end + 1
            else:
                end = min((index for mark in "\n\x1b" if (index := text.find(mark, place)) >= 0), default=len(text))
                self.lines[self.row] = text[place:end]
                place = end

    def _feed(self) -> None:
        if self.row == self.bottom:
            self.lines[: self.bottom + 1] = [*self.lines[1 : self.bottom + 1], ""]
        else:
            self.row = min(self.row + 1, self.height - 1)

    def _control(self, kind: str, given: str) -> None:
        match kind:
            case "A":
                self.row -= int(given)
            case "H":
                self.row = int(given.partition(";")[0]) - 1
            case "K":
                self.lines[self.row] = ""
            case "J":
                self.lines[self.row :] = [""] * (self.height - self.row)
            case "r":
                self.bottom, self.row = int(given.partition(";")[2] or self.height) - 1, 0


def test_other_processes_write_above_the_rows() -> None:
    screen = Screen(20, 9)
    rows = LiveRows(screen.write, lambda: (screen.columns, screen.height))
    screen.write("".join(f"before {number}\n" for number in range(9)))
    rows.show(["one", "two is far too long for it"])
    assert screen.lines[-2:] == ["one", "two is far too long"]
    screen.write("".join(f"line {number}\n" for number in range(20)))
    rows.show(["one 2", "two 2"])
    assert screen.lines == [*(f"line {number}" for number in range(14, 20)), "", "one 2", "two 2"]
    rows.show(["restarts"])
    assert screen.lines[-1] == "restarts"
    rows.show(list("abcdef"))
    assert screen.lines[-3:] == ["a", "b", "c"], "a third of the screen at most"
    rows.close()
    screen.write("after\n")
    assert screen.bottom == 8
    assert [line for line in screen.lines if line][-2:] == ["line 19", "after"]
