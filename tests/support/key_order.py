"""Judges whether the rows of each key come in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any


def out_of_order(keys: Sequence[Any], numbers: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """Each place where the numbers of a key do not grow: key, number, the number that followed."""
    rows = sorted(zip(keys, numbers, range(len(keys)), strict=True), key=lambda row: (str(row[0]), row[2]))
    places = []
    for key, group in groupby(rows, key=lambda row: row[0]):
        values = [number for _, number, _ in group]
        places += [(key, before, after) for before, after in pairwise(values) if after <= before]
    return places
