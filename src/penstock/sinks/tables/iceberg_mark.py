"""What a sink has done to an Iceberg table: a mark in the table's properties, and a chain of pages behind it.

The mark, the property `penstock.<job>:<uid>`, counts the sink's commits and names the page of the newest; it is written
by the very commit it counts. A page is a small file that names the tokens which one commit took or gave up, and holds
the mark as it was before. So a proof walks back as many pages as there were commits, whatever number of writers they
had, while the mark itself stays short: Hive's metastore takes 4,000 characters for a property.

    <data folder>/_penstock/<job>/<uid>/taken/<commit>-<random>.json

A page is durable before the commit that names it. One whose commit failed is named by nothing and goes with the old.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.sinks.tables.target import Change, History

if TYPE_CHECKING:
    from penstock.storage.tree import Tree

#: Commits whose pages are kept: more than there can be between the seal of an epoch and its own commit.
KEPT_COMMITS = 256
#: Old pages are looked for once in so many commits.
PRUNE_EVERY = 64

_PAGE = re.compile(r"^(?P<commit>\d{10,})-[0-9a-f]+\.json$")
_NOTHING: Mapping[str, Any] = {"commits": 0, "gave_up": 0}


class Pages:
    """One sink's. `tree` opens a data folder; `folder` is where the pages are in it."""

    def __init__(self, tree: Callable[[str], Tree], folder: str) -> None:
        self._tree, self._folder = tree, folder
        self._known: dict[str, Mapping[str, Any]] = {}

    def history(self, mark: Mapping[str, Any], before: int) -> History:
        """What the sink did after its commit number `before`."""
        after = mark["commits"] - before
        entries = list(islice(self._entries(mark), max(0, after)))
        return History(
            frozenset(token for entry in entries for token in entry["added"]),
            frozenset(token for entry in entries for token in entry["swept"]),
            complete=len(entries) == after,
            quiet=after >= 0 and mark.get("gave_up", mark["commits"]) <= before,
        )

    def add(self, mark: Mapping[str, Any], root: str, change: Change) -> dict[str, Any]:
        """Write the page of the next commit; the mark that the commit has to set."""
        number = mark["commits"] + 1
        name = f"{number:010d}-{secrets.token_hex(6)}.json"
        page = {"added": list(change.added), "swept": list(change.swept), "before": dict(mark)}
        self._tree(root).write_durably(f"{self._folder}/{name}", json.dumps(page).encode())
        self._remember(name, page)
        gave_up = number if change.swept else mark.get("gave_up", mark["commits"])
        return {"commits": number, "gave_up": gave_up, "root": root, "page": name}

    def drop(self, mark: Mapping[str, Any]) -> None:
        """Of a commit that did not come about. One that stays goes with the old ones."""
        with contextlib.suppress(OSError):
            self._tree(mark["root"]).remove(f"{self._folder}/{mark['page']}")

    def prune(self, mark: Mapping[str, Any]) -> None:
        """Now and then, remove what is too old to be asked for."""
        if mark["commits"] % PRUNE_EVERY:
            return
        tree = self._tree(mark["root"])
        with contextlib.suppress(OSError):
            for name in tree.file_names(self._folder):
                match = _PAGE.match(name)
                if match and int(match["commit"]) <= mark["commits"] - KEPT_COMMITS:
                    tree.remove(f"{self._folder}/{name}")

    def _entries(self, mark: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """What each commit took and gave up, the newest first, as far as there are pages."""
        at: Mapping[str, Any] | None = mark
        while at is not None:
            yield from reversed(at.get("last", ()))  # in the mark itself, as earlier versions kept them
            page = self._read(at) if "page" in at else None
            if page is not None:
                yield page
            at = page["before"] if page is not None else None

    def _read(self, mark: Mapping[str, Any]) -> Mapping[str, Any] | None:
        name = mark["page"]
        if name not in self._known:
            try:
                self._remember(name, json.loads(self._tree(mark["root"]).read(f"{self._folder}/{name}")))
            except (FileNotFoundError, ValueError):  # cleaned up or altered: the history ends here
                return None
        return self._known[name]

    def _remember(self, name: str, page: Mapping[str, Any]) -> None:
        self._known[name] = page
        if len(self._known) > KEPT_COMMITS:
            del self._known[next(iter(self._known))]


def mark_in(properties: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """The mark as the table has it."""
    text = properties.get(name)
    mark: Mapping[str, Any] = json.loads(text) if text else _NOTHING
    return mark
