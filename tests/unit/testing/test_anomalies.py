"""The independent reader tells the anomalies apart, each with examples."""

from __future__ import annotations

import pytest

from penstock.testing.anomalies import Row, find_anomalies

SENT = [Row(key, number, number // 2) for number in range(6) for key in ("a", "b")]
ALL = [Row(row.key, row.sequence) for row in SENT]


def without(*gone: tuple[str, int]) -> list[Row]:
    return [row for row in ALL if row.id not in gone]


def kinds(visible: list[Row], **how: bool) -> dict[str, int]:
    return {anomaly.kind: anomaly.count for anomaly in find_anomalies(SENT, visible, **how)}  # type: ignore[arg-type]


def test_what_was_sent_once_and_is_visible_once_is_right() -> None:
    assert kinds(ALL) == {}
    assert kinds(ALL[::-1], ordered=False) == {}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (without(("a", 5)), {"lost write": 1, "torn transaction": 1}),
        (without(*((key, number) for key in "ab" for number in (4, 5))), {"lost write": 4}),
        (without(("a", 2)), {"lost write": 1, "skipped rows": 1, "torn transaction": 1}),
        ([*ALL, ALL[0], ALL[0]], {"duplicate": 1}),
        ([*ALL, Row("a", 99)], {"aborted read": 1}),
        ([ALL[2], ALL[0], *without(("a", 0), ("a", 1))], {"order within a key": 1}),
        ([], {"lost write": 12}),
    ],
)
def test_each_anomaly_is_named(visible: list[Row], found: dict[str, int]) -> None:
    assert kinds(visible) == found


def test_before_the_end_nothing_is_lost_yet_and_a_gap_is() -> None:
    assert kinds(without(("a", 4), ("a", 5), ("b", 4), ("b", 5)), complete=False) == {}
    assert kinds(without(("a", 0)), complete=False) == {"skipped rows": 1, "torn transaction": 1}


def test_rows_of_aborted_transactions_must_not_be_read() -> None:
    [anomaly] = find_anomalies(SENT, ALL, aborted={("a", 5)})
    assert str(anomaly) == "aborted read: 1 (a/5)"
    assert find_anomalies(SENT, without(("a", 5)), aborted={("a", 5)}) == []


def test_it_shows_a_few_examples() -> None:
    [lost] = find_anomalies(SENT, [])
    assert str(lost).startswith("lost write: 12 (a/0 (epoch 0), b/0 (epoch 0), ")
    assert str(lost).endswith(", …)")
