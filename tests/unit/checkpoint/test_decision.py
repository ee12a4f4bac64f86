"""What an epoch's records say by themselves: what is to be committed, and whether a replay holds what was decided."""

from __future__ import annotations

import pytest

from penstock.checkpoint.decision import (
    MODULO,
    CheckpointState,
    Committable,
    Decision,
    DecisionId,
    Outcome,
    match_replay,
    next_epoch,
)


def one(writer: int, rows: int, checksum: int, sink: str = "out") -> Committable:
    return Committable(sink, writer, rows, checksum, {"made": writer})


def differing(decided: list[Committable], replayed: list[Committable], *rewritten: str) -> set[tuple[str, int]]:
    return match_replay(decided, replayed, rewritten)[1]


# Records


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_is_committed_is_visible(outcome: Outcome) -> None:
    assert outcome.visible is (outcome in {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})


def test_a_payload_is_added_to_and_what_it_is_taken_from_stays() -> None:
    before = Committable("out", 3, 2, 7, {"name": "a", "sequence": 1}, format=2)
    after = before.with_payload(sequence=5, sealed=True)
    assert after == Committable("out", 3, 2, 7, {"name": "a", "sequence": 5, "sealed": True}, format=2)
    assert before.payload == {"name": "a", "sequence": 1}
    assert after.id == ("out", 3)


def test_a_writer_without_rows_has_nothing_to_commit() -> None:
    full, empty = one(0, 1, 7), one(1, 0, 0)
    assert Decision(DecisionId(1, 1), (empty, full)).to_commit == (full,)


@pytest.mark.parametrize(
    ("payload", "logged", "at_sink"),
    [
        ({"id": "a"}, False, {"id": "a"}),
        ({"log": "file", "prepared": {"id": "a"}}, True, {"id": "a"}),
        ({"log": "file", "prepared": None}, True, None),
        ({"log": "a sink's own word"}, False, {"log": "a sink's own word"}),
        ({"log": 1, "prepared": 2, "more": 3}, False, {"log": 1, "prepared": 2, "more": 3}),
    ],
)
def test_what_the_in_flight_log_holds_is_told_apart_from_what_the_sink_has_prepared(
    payload: dict[str, object], logged: bool, at_sink: dict[str, object] | None
) -> None:
    committable = Committable("out", 3, 2, 7, payload, format=2)
    assert committable.logged is logged
    expected = None if at_sink is None else Committable("out", 3, 2, 7, at_sink, format=2)
    assert committable.at_sink == expected


def test_the_first_epoch_of_all_is_finished_before_the_second() -> None:
    """There is no claim yet that could say what was complete."""
    decided = Decision(DecisionId(0, 1), ())
    assert next_epoch(CheckpointState(0, barrier=True, decisions=(decided,))) == 0


# Sinks that are written again: each writer has a partner


def test_partners_are_found_by_their_rows_and_not_by_their_number() -> None:
    decided, replayed = [one(0, 2, 20), one(1, 3, 30)], [one(0, 3, 30), one(1, 2, 20)]
    assert match_replay(decided, replayed, {"out"}) == (
        {("out", 0): replayed[1], ("out", 1): replayed[0]},
        set(),
    )


def test_of_writers_that_hold_the_same_each_is_the_partner_of_one() -> None:
    found, differ = match_replay([one(0, 2, 20), one(1, 2, 20)], [one(5, 2, 20), one(6, 2, 20)], {"out"})
    assert {partner.writer for partner in found.values()} == {5, 6}
    assert not differ
    assert differing([one(0, 2, 20), one(1, 2, 20)], [one(5, 2, 20)], "out") == {("out", 1)}
    assert differing([one(0, 2, 20)], [one(5, 2, 20), one(6, 2, 20)], "out") == {("out", 5)}


@pytest.mark.parametrize("other", [one(0, 3, 20), one(0, 1, 20), one(0, 2, 21), one(0, 2, 19), one(0, 2, 20 + MODULO)])
def test_other_rows_make_no_partner(other: Committable) -> None:
    kept = one(1, 4, 40)
    found, differ = match_replay([one(7, 2, 20), kept], [other, kept], {"out"})
    assert found == {("out", 1): kept}
    assert differ == {("out", 7), ("out", 0)}


def test_writers_without_rows_need_no_partner() -> None:
    assert match_replay([one(0, 0, 0)], [one(3, 0, 0), one(4, 0, 0)], {"out"}) == ({}, set())


def test_partners_are_of_the_same_sink() -> None:
    here, there = one(0, 2, 20, "here"), one(0, 2, 20, "there")
    assert match_replay([here], [there], {"here", "there"}) == ({}, {("here", 0), ("there", 0)})
    assert match_replay([here, there], [there, here], {"here", "there"})[0] == {here.id: here, there.id: there}


# Sinks that are not: all their rows together


def test_rows_that_are_dealt_out_to_other_writers_are_the_same_rows() -> None:
    decided, replayed = [one(0, 2, MODULO - 1), one(1, 3, 30)], [one(0, 4, 9), one(1, 0, 0), one(2, 1, 20)]
    assert match_replay(decided, replayed, {"another"}) == ({}, set())


@pytest.mark.parametrize("other", [one(2, 6, 50), one(2, 4, 50), one(2, 5, 51), one(2, 5, 49), one(2, 5, 50 + MODULO)])
def test_where_they_are_other_rows_every_writer_of_the_sink_differs(other: Committable) -> None:
    """A checksum by another rule cannot be compared, whatever its sum."""
    elsewhere = one(0, 1, 10, "kept")
    decided = [one(0, 2, 20), one(1, 3, 30), one(3, 0, 0), elsewhere]
    assert differing(decided, [other, elsewhere]) == {("out", 0), ("out", 1), ("out", 2)}


def test_a_sink_that_only_one_side_has_differs() -> None:
    assert differing([one(0, 1, 10, "before")], [one(1, 1, 10, "after")]) == {("before", 0), ("after", 1)}


def test_sinks_of_both_kinds_are_compared_each_in_its_way() -> None:
    decided = [one(0, 2, 20, "dealt"), one(1, 3, 30, "dealt"), one(0, 2, 20, "again"), one(1, 3, 30, "again")]
    replayed = [one(0, 5, 50, "dealt"), one(0, 5, 50, "again")]
    assert match_replay(decided, replayed, {"again"}) == ({}, {("again", 0), ("again", 1)})
