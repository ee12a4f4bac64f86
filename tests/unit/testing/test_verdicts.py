"""The verdict of the fault suites names each anomaly of the independent reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import Row
from tests.support.verdicts import assert_none, copy_anomalies, epochs_of, number_anomalies, total_anomalies

SENT = [Row(number, f"k{number % 2}", number // 2 + 1, 10 * number) for number in range(8)]
EPOCHS = {number: number // 4 for number in range(8)}
ALL = [{"id": row.id, "key": row.key, "number": row.number} for row in SENT]


def kinds(visible: list[dict[str, Any]]) -> dict[str, int]:
    return {anomaly.kind: anomaly.count for anomaly in copy_anomalies(SENT, visible, EPOCHS)}


def without(*gone: int) -> list[dict[str, Any]]:
    return [row for row in ALL if row["id"] not in gone]


def test_a_copy_that_is_exact_passes() -> None:
    assert_none(copy_anomalies(SENT, ALL, EPOCHS))
    assert_none(copy_anomalies(SENT, [*ALL[::2], *ALL[1::2]]))


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (without(4, 5, 6, 7), {"lost write": 4}),
        ([*ALL, ALL[7]], {"duplicate": 1}),
        ([*ALL, {"id": 8, "key": "k0", "number": 5}], {"aborted read": 1}),
        (
            [*without(7), {"id": 5, "key": "k1", "number": 4}],
            {"aborted read": 1, "lost write": 1, "torn transaction": 1},
        ),
        (without(7), {"lost write": 1, "torn transaction": 1}),
        ([ALL[2], ALL[0], *without(0, 2)], {"order within a key": 1}),
        (without(0, 1, 2, 3), {"lost write": 4, "skipped rows": 4}),
    ],
)
def test_each_anomaly_of_a_copy_is_named(visible: list[dict[str, Any]], found: dict[str, int]) -> None:
    assert kinds(visible) == found
    with pytest.raises(AssertionError, match=next(iter(found))):
        assert_none(copy_anomalies(SENT, visible, EPOCHS))


def total(key: str, n: int, total: int) -> dict[str, Any]:
    return {"key": key, "n": n, "total": total}


TRUTH = {("a", 1): 5, ("a", 2): 7, ("a", 3): 8, ("b", 1): 2}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ([total("a", 1, 5), total("a", 3, 8), total("b", 1, 2)], {}),
        ([total("a", 3, 8), total("b", 1, 2)], {}),
        ([total("a", 2, 7), total("b", 1, 2)], {"lost write": 1}),
        ([total("a", 3, 8)], {"lost write": 1}),
        ([total("a", 3, 9), total("a", 3, 8), total("b", 1, 2)], {"aborted read": 1}),
        ([total("a", 3, 8), total("a", 3, 8), total("b", 1, 2)], {"duplicate": 1}),
        ([total("a", 3, 8), total("a", 1, 5), total("b", 1, 2)], {"order within a key": 1}),
    ],
)
def test_totals_may_be_left_out_and_must_be_true(visible: list[dict[str, Any]], found: dict[str, int]) -> None:
    assert {anomaly.kind: anomaly.count for anomaly in total_anomalies(TRUTH, visible)} == found


def test_numbers_need_no_order() -> None:
    assert number_anomalies(range(3), [2, 0, 1]) == []
    found = {anomaly.kind for anomaly in number_anomalies(range(3), [0, 0, 7])}
    assert found == {"lost write", "duplicate", "aborted read"}


def test_the_epoch_of_a_row_comes_from_sparks_log(tmp_path: Path) -> None:
    for epoch, ends in enumerate(({"0": 2, "1": 1}, {"0": 2, "1": 3})):
        (tmp_path / str(epoch)).write_text(f"v1\n{{}}\n{json.dumps({'in': ends})}\n")
    (tmp_path / ".1.crc").write_bytes(b"")
    places = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1), 4: (1, 2), 5: (0, 2)}
    assert epochs_of(tmp_path, "in", places) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}
    (tmp_path / "0").unlink()
    assert epochs_of(tmp_path, "in", places) == {}, "where its first epoch begins is not known any more"
    assert epochs_of(tmp_path / "none", "in", places) == {}
