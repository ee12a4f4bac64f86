"""The layout on disk: names are as they have always been."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.checkpoint import layout


def test_names_are_what_they_have_always_been() -> None:
    """Checkpoints of every release so far are laid out like this."""
    assert layout.offsets(12) == "offsets/12"
    assert layout.commits(12) == "commits/12"
    assert layout.source(0) == "sources/0"
    assert layout.operator(3) == "state/3"
    assert layout.operator_description(3) == "state/3/_metadata/metadata"
    assert layout.operator_description(3, 0) == "state/3/_metadata/v2/0"
    assert layout.numbered(layout.GLOBAL, 12) == "global/0000000012.json"
    assert layout.numbered(layout.RESTORES, 2) == "restores/0000000002.json"
    assert layout.query_file("a.b") == "queries/a.b.json"
    assert layout.saved_query("a") == "queries/a"
    assert layout.saved_checkpoint("a") == "queries/a/spark"
    assert layout.saved_state("a") == "queries/a/state"
    assert layout.checkpoint_name(12) == "chk-12"
    assert layout.record_file(12) == "checkpoints/chk-12.json"
    assert layout.record_file(12, 0) == "checkpoints/chk-12.failed-0.json"


def test_numbers_are_read_from_names_of_ours_only() -> None:
    assert layout.numbers(["0000000012.json", "0000000003.json", "12.json", ".0000000001.json", "notes"]) == [3, 12]
    assert layout.query_uids(["b.json", "a.json", "a.txt"]) == ["a", "b"]


def test_records_are_ordered_by_epoch_and_attempt() -> None:
    names = ["chk-10.json", "chk-9.json", "chk-10.failed-7.json", "chk-10.failed-30.json", "chk-x.json", "chk-9.json~"]
    ordered = layout.record_names(names)
    assert ordered == ["chk-9.json", "chk-10.failed-7.json", "chk-10.failed-30.json", "chk-10.json"]
    assert [layout.is_failed(name) for name in ordered] == [False, True, True, False]


def test_histories() -> None:
    assert layout.history("3f2a9c41d07e") == "spark-3f2a9c41d07e"
    assert layout.is_history(layout.FIRST)
    assert layout.is_history("spark-3f2a9c41d07e")
    assert not layout.is_history("spark-3f2a9c41d07")
    assert not layout.is_history("ledger")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/s/job/chk-175", ("/s/job", 175)),
        ("/s/job/chk-175/", ("/s/job", 175)),
        ("/s/job/query/checkpoints/chk-175.json", ("/s/job/query/checkpoints", 175)),
        ("/s/job", None),
        ("/s/job/chk-x", None),
        ("chk-1", None),
    ],
)
def test_paths_that_name_a_checkpoint(path: str, found: tuple[str, int] | None) -> None:
    assert layout.split_checkpoint(path) == found


def test_folders_of_a_query_s_checkpoints() -> None:
    assert layout.split_query_checkpoints("/s/job/query/checkpoints") == ("/s/job", "query")
    assert layout.split_query_checkpoints("/s/job") is None


def test_fields_of_a_newer_version_are_left_out() -> None:
    @dataclass
    class Known:
        a: int
        b: int = 0

    assert layout.known_fields(Known, {"a": 1, "c": 3}) == {"a": 1}
