"""Traces of the Java writer against the model: `follow` says whether lines are a path of `lane_model.run_task`.

`lane_model.py` has the words."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from penstock.contracts import lanes as lp
from penstock.contracts.lanes import Mark
from penstock.errors import MarksLost, PenstockError, ReplayDiffers, Superseded, SystemUnavailable
from tests.support import lane_model

_ENDS = {Superseded: "superseded", MarksLost: "lost", ReplayDiffers: "differs", SystemUnavailable: "gone"}


def follow(lines: Sequence[str]) -> str | None:
    """None where the lines are a path of the model, with any number of owners one after the other, each of which may
    stop anywhere; else the first line that is not, and what the model does there."""
    owner: _Owner | None = None
    for number, line in enumerate(lines, 1):
        word, *fields = line.split()
        if word == "task":
            owner = _Owner(fields)
        else:
            complaint = owner.follow(word, fields) if owner else "a trace begins with a task"
            if complaint:
                return f"line {number}, {line!r}: {complaint}"
    return None


class _Owner:
    """The model of one owner, between two lines."""

    def __init__(self, fields: Sequence[str]) -> None:
        query, generation, rows, *at = fields
        owner = lp.Owner(query, int(generation))
        begun = None if at == ["none"] else Mark(query, owner.generation, int(at[0]), int(at[1]))
        self._model: Generator[Any, Any, None] = lane_model.run_task(owner, begun, multiplies=rows == "several")
        self._end: str | None = None  # the word that must come last
        self._action: Any = next(self._model)

    def follow(self, word: str, fields: Sequence[str]) -> str | None:
        if word == "failed" and self._end in (None, "failed"):
            self._end = ""
            return None
        if self._end is not None:
            expected, self._end = self._end, ""
            return None if word == expected and not fields else f"the model ends with {expected!r}"
        if word == "abort" and not isinstance(self._action, lp.Abort):
            self._end = "failed"
            return None
        return self._step(word, [*fields])

    def _step(self, word: str, fields: list[str]) -> str | None:
        match self._action, word, fields:
            case (lp.Init(), "init", []) | (lp.Abort(), "abort", []) | (lane_model.Wait(), "wait", []):
                self._send(None)
            case lp.SendOpening(), "open", [offset]:
                self._send(int(offset))
            case lp.ReadMark(), "read", ["none"]:
                self._send(None)
            case lp.ReadMark(), "read", [query, *numbers]:
                generation, offset_, part, digest = map(int, numbers)
                self._send(Mark(query, generation, offset_, part, digest))
            case lane_model.Take(), "row" | "drop" | "differs", [offset, digest_]:
                return self._row(word, lane_model.Row(int(offset), int(digest_)))
            case lane_model.Take(), "next", [offset]:
                self._send(lane_model.Next(int(offset)))
                return "nothing is to be marked" if isinstance(self._action, lane_model.Take) else None
            case lane_model.Take(), "mark", _:
                self._send(lane_model.Signal.CUT)
                return (
                    "nothing is to be marked" if isinstance(self._action, lane_model.Take) else self._step(word, fields)
                )
            case lane_model.Take(), "end" | "begin", []:
                self._send(lane_model.Signal[word.upper()])
            case lp.SendMark(mark), "mark", [*numbers]:
                if [*map(int, numbers)] != [mark.offset, mark.part, mark.digest]:
                    return f"the mark is {mark.offset} {mark.part} {mark.digest}"
                self._send(None)
            case lp.Commit(), "commit" | "unsure", []:
                self._send(word == "commit")
            case _:
                return f"the model goes on with {self._action}"
        return None

    def _row(self, word: str, row: lane_model.Row) -> str | None:
        self._send(row)
        if self._end is not None:
            expected, self._end = self._end, ""
        else:
            expected = "row" if isinstance(self._action, lane_model.SendRow) else "drop"
        if word == expected == "row":
            self._send(None)
        return None if word == expected else f"the model says {expected!r}"

    def _send(self, answer: Any) -> None:
        try:
            self._action = self._model.send(answer)
        except PenstockError as error:
            self._end = _ENDS[type(error)]
