"""A sink's commits to an Iceberg table: a mark in the table's properties, and a chain of pages behind it.

The mark counts the sink's commits and names the page of the newest. A page names the tokens which one commit took or
gave up, and holds the mark as it was before. So a proof walks back as many pages as there were commits, with any number
of writers, while the mark stays short: Hive's metastore takes 4,000 characters for a property.

A page is durable before the commit that names it. The page of a failed commit is pruned with the old ones.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from penstock.sinks.tables.target import Change, History
from penstock.storage.tree import Tree

#: Commits whose pages are kept: more than there can be between the seal of an epoch and its commit.
KEPT_COMMITS = 256
#: Commits between two searches for old pages.
PRUNE_EVERY = 64

_PAGE = re.compile(r"^(?P<commit>\d{10,})-[0-9a-f]+\.json$")
_NOTHING: Mapping[str, Any] = {"commits": 0, "gave_up": 0}


class Pages:
    """One sink's pages. `tree` opens a data folder; `folder` is their place in it."""

    def __init__(self, tree: Callable[[str], Tree], folder: str) -> None:
        self._tree, self._folder = tree, folder
        self._known: dict[str, Mapping[str, Any]] = {}

    def history(self, mark: Mapping[str, Any], before: int) -> History:
        """The sink's commits after number `before`."""
        after = mark["commits"] - before
        entries = list(islice(self._entries(mark), max(0, after)))
        return History(
            frozenset(token for entry in entries for token in entry["added"]),
            frozenset(token for entry in entries for token in entry["swept"]),
            complete=len(entries) == after,
            quiet=after >= 0 and mark["gave_up"] <= before,
        )

    def add(self, mark: Mapping[str, Any], root: str, change: Change) -> dict[str, Any]:
        """Write the page of the next commit; returns the mark that the commit has to set."""
        number = mark["commits"] + 1
        name = f"{number:010d}-{secrets.token_hex(6)}.json"
        page = {"added": list(change.added), "swept": list(change.swept), "before": dict(mark)}
        self._tree(root).write_durably(f"{self._folder}/{name}", json.dumps(page).encode())
        self._remember(name, page)
        gave_up = number if change.swept else mark["gave_up"]
        return {"commits": number, "gave_up": gave_up, "root": root, "page": name}

    def drop(self, mark: Mapping[str, Any]) -> None:
        """Remove the page of a failed commit; if that fails, `prune` will."""
        with contextlib.suppress(OSError):
            self._tree(mark["root"]).remove(f"{self._folder}/{mark['page']}")

    def prune(self, mark: Mapping[str, Any]) -> None:
        if mark["commits"] % PRUNE_EVERY:
            return
        tree = self._tree(mark["root"])
        with contextlib.suppress(OSError):
            for name in tree.file_names(self._folder):
                match = _PAGE.match(name)
                if match and int(match["commit"]) <= mark["commits"] - KEPT_COMMITS:
                    tree.remove(f"{self._folder}/{name}")

    def _entries(self, mark: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        while "page" in mark and (page := self._read(mark)) is not None:
            yield page
            mark = page["before"]

    def _read(self, mark: Mapping[str, Any]) -> Mapping[str, Any] | None:
        name = mark["page"]
        if name not in self._known:
            try:
                self._remember(name, json.loads(self._tree(mark["root"]).read(f"{self._folder}/{name}")))
            except (FileNotFoundError, ValueError):  # removed or altered: the history ends here
                return None
        return self._known[name]

    def _remember(self, name: str, page: Mapping[str, Any]) -> None:
        self._known[name] = page
        if len(self._known) > KEPT_COMMITS:
            del self._known[next(iter(self._known))]


def mark_in(properties: Mapping[str, str], name: str) -> Mapping[str, Any]:
    text = properties.get(name)
    mark: Mapping[str, Any] = json.loads(text) if text else _NOTHING
    return mark
