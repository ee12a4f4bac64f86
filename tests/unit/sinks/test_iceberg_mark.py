"""The chain of pages behind an Iceberg sink's mark: what it tells of each commit, and what it keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.sinks.tables import iceberg_mark
from penstock.sinks.tables.iceberg_mark import Pages, mark_in
from penstock.sinks.tables.target import Change, History
from tests.support.memory_files import MemoryFiles

FOLDER = "_penstock/job/out/taken"
NONE: Mapping[str, Any] = mark_in({}, "mark")


class Lake:
    """Data folders by their roots."""

    def __init__(self) -> None:
        self.trees = {"a": MemoryFiles(), "b": MemoryFiles()}
        self.read: list[str] = []

    def pages(self) -> Pages:
        """As another process opens them."""
        return Pages(self._tree, FOLDER)

    def _tree(self, root: str) -> MemoryFiles:
        self.read.append(root)
        return self.trees[root]

    def names(self, root: str = "a") -> list[str]:
        return self.trees[root].file_names(FOLDER)


@pytest.fixture
def lake() -> Lake:
    return Lake()


def commits(pages: Pages, *changes: Change, mark: Mapping[str, Any] = NONE, root: str = "a") -> Mapping[str, Any]:
    for change in changes:
        mark = mark_in({"mark": json.dumps(pages.add(mark, root, change))}, "mark")
    return mark


def added(*tokens: str) -> Change:
    return Change("", added=tokens)


def swept(*tokens: str) -> Change:
    return Change("", swept=tokens)


def told(*tokens: str, swept: tuple[str, ...] = (), complete: bool = True, quiet: bool = True) -> History:
    return History(frozenset(tokens), frozenset(swept), complete, quiet)


def test_a_table_without_a_mark_has_no_history(lake: Lake) -> None:
    assert mark_in({"other": "{}"}, "mark") == {"commits": 0, "gave_up": 0}
    assert lake.pages().history(NONE, 0) == told()
    assert lake.read == []


def test_each_position_has_its_own_history(lake: Lake) -> None:
    mark = commits(lake.pages(), added("x", "y"), swept("z"), added("w"))
    pages = lake.pages()
    assert pages.history(mark, 3) == told()
    assert lake.names() != []
    assert pages.history(mark, 2) == told("w")
    assert pages.history(mark, 1) == told("w", swept=("z",), quiet=False)
    assert pages.history(mark, 0) == told("w", "x", "y", swept=("z",), quiet=False)


def test_a_mark_is_short_however_many_tokens_there_are(lake: Lake) -> None:
    mark = commits(lake.pages(), *(added(*(f"{n}{token:019x}" for token in range(500))) for n in range(3)))
    assert len(json.dumps(mark)) < 200
    assert len(lake.pages().history(mark, 0).added) == 1_500


def test_a_page_is_durable_before_its_commit_and_named_after_its_number(lake: Lake) -> None:
    mark = commits(lake.pages(), added("x"), added("y"))
    assert mark == {"commits": 2, "gave_up": 0, "root": "a", "page": mark["page"]}
    assert re.fullmatch("0000000002-[0-9a-f]{12}.json", mark["page"])
    assert lake.trees["a"].did[-1][:2] == ("write", f"{FOLDER}/{mark['page']}")
    assert [name.partition("-")[0] for name in lake.names()] == ["0000000001", "0000000002"]
    again = lake.pages().add(mark, "a", added("z"))
    assert again["page"] != lake.pages().add(mark, "a", added("z"))["page"], "two that try at once differ"


def test_a_history_that_no_longer_reaches_back_says_what_it_still_knows(lake: Lake) -> None:
    mark = commits(lake.pages(), added("x"), added("y"), added("z"))
    lake.trees["a"].remove(f"{FOLDER}/{lake.names()[1]}")
    assert lake.pages().history(mark, 0) == told("z", complete=False)
    assert lake.pages().history(mark, 2) == told("z")


@pytest.mark.parametrize("body", [b"", b"{half"])
def test_a_page_that_was_altered_ends_the_history(lake: Lake, body: bytes) -> None:
    mark = commits(lake.pages(), added("x"), added("y"))
    lake.trees["a"].contents[f"{FOLDER}/{lake.names()[0]}"] = body
    assert lake.pages().history(mark, 0) == told("y", complete=False)


def test_it_stays_known_when_something_was_given_up_last(lake: Lake) -> None:
    mark = commits(lake.pages(), added("x"), swept("y"), added("z"), added("w"))
    for name in lake.names()[:3]:
        lake.trees["a"].remove(f"{FOLDER}/{name}")
    assert mark["gave_up"] == 2
    assert lake.pages().history(mark, 1) == told("w", complete=False, quiet=False)
    assert lake.pages().history(mark, 2) == told("w", complete=False)


def test_a_position_ahead_of_the_mark_proves_nothing(lake: Lake) -> None:
    """The table's properties were put back."""
    mark = commits(lake.pages(), added("x"))
    assert lake.pages().history(mark, 2) == told(complete=False, quiet=False)


def test_pages_are_found_where_the_data_was_when_they_were_written(lake: Lake) -> None:
    first = commits(lake.pages(), added("x"))
    mark = commits(lake.pages(), added("y"), mark=first, root="b")
    assert (len(lake.names("a")), len(lake.names("b"))) == (1, 1)
    assert lake.pages().history(mark, 0) == told("x", "y")


def test_what_a_process_wrote_or_read_it_does_not_read_again(lake: Lake) -> None:
    pages = lake.pages()
    mark = commits(pages, added("x"), added("y"))
    lake.read.clear()
    assert pages.history(mark, 0) == told("x", "y")
    assert lake.read == []
    other = lake.pages()
    assert other.history(mark, 1) == told("y")
    assert other.history(mark, 0) == told("x", "y")
    assert lake.read == ["a", "a"]


def test_what_is_remembered_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_mark, "KEPT_COMMITS", 2)
    pages = lake.pages()
    mark = commits(pages, added("x"), added("y"), added("z"))
    lake.read.clear()
    assert pages.history(mark, 1) == told("y", "z")
    assert lake.read == []
    assert pages.history(mark, 0) == told("x", "y", "z")
    assert lake.read == ["a"]


def test_the_page_of_a_commit_that_failed_goes(lake: Lake) -> None:
    pages = lake.pages()
    mark = commits(pages, added("x"))
    pages.drop(pages.add(mark, "a", added("y")))
    assert lake.names() == [mark["page"]]

    def refuse(what: str, name: str) -> None:
        raise PermissionError(name)

    lake.trees["a"].before = refuse
    pages.drop(mark)
    assert lake.names() == [mark["page"]]


def test_old_pages_go_now_and_then_and_strange_files_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_mark, "KEPT_COMMITS", 3)
    monkeypatch.setattr(iceberg_mark, "PRUNE_EVERY", 4)
    pages, tree = lake.pages(), lake.trees["a"]
    tree.contents[f"{FOLDER}/readme"] = tree.contents[f"{FOLDER}/0000000001-x.json"] = b""
    mark = NONE
    for number in range(1, 10):
        mark = commits(pages, added(f"t{number}"), mark=mark)
        pages.prune(mark)
        kept = [int(name[:10]) for name in lake.names() if name.endswith(".json") and name != "0000000001-x.json"]
        last = number - number % 4
        assert kept == list(range(max(1, last - 2), number + 1))
    assert {"readme", "0000000001-x.json"} <= set(lake.names())
    assert lake.pages().history(mark, 5) == told("t6", "t7", "t8", "t9")

    def refuse(what: str, name: str) -> None:
        raise PermissionError(name)

    tree.before = refuse
    pages.prune({**mark, "commits": 12})
