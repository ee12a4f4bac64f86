"""The documentation against the code: names that must be there are there, and whatever is named exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import draw_modules

import penstock
from penstock import errors
from penstock.config.levels import BY_KEY
from penstock.errors import PenstockError
from penstock.failpoints import POINTS

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "penstock"
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
REFERENCE = DOCS / "reference"

#: A snippet says before its fence whether it is a whole program or a part of one.
FENCE = re.compile(
    r"(?P<mark><!-- (?:runnable(?:: \S+)?|fragment) -->\n)?^```python[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:src|tests|bench|examples|docs|scripts)/[\w./-]*\w")
PUBLIC = r"penstock(\.errors|\.testing(\.\w+)?)?"
MODULE = re.compile(r"penstock(?:\.\w+)+")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def snippets(page: Path) -> Iterator[tuple[str | None, str]]:
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        yield match["mark"], match["code"]


def first_cells(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by what stands in code in the first cell."""
    rows: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            for name in CODE.findall(cells[0]):
                rows[name] = cells
    return rows


def every_error(root: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from every_error(child)


@every_page
def test_snippets_compile(page: Path) -> None:
    """Every one says what it is; all are Python, and what a whole program takes from Penstock is there."""
    for mark, code in snippets(page):
        assert mark, f"neither <!-- runnable --> nor <!-- fragment --> stands before:\n{code}"
        tree = ast.parse(code)
        if "runnable" not in mark:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock":
                module = importlib.import_module(str(node.module))
                assert not [one.name for one in node.names if not hasattr(module, one.name)], code


@pytest.mark.parametrize("text", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=named)
def test_users_are_shown_public_modules_only(text: Path) -> None:
    """Public is what `penstock`, `penstock.errors` and `penstock.testing` export; every other module is internal."""
    content = text.read_text(encoding="utf-8")
    imported = set(re.findall(r"^\s*(?:from|import) (penstock[\w.]*)", content, re.M))
    assert {name for name in imported if not re.fullmatch(PUBLIC, name)} == set()


@every_page
def test_what_is_named_exists(page: Path) -> None:
    """Files, tests inside them (`tests/…py::test_…`), and things in modules (`penstock.….name`)."""
    for text in CODE.findall(page.read_text(encoding="utf-8")):
        path, _, test = text.partition("::")
        if PATH.fullmatch(path):
            if path == "bench/results/kafka.json":
                continue  # made by the benchmark, not kept
            assert (ROOT / path).exists(), f"{path} is not there"
            if test:
                content = (ROOT / path).read_text(encoding="utf-8")
                assert re.search(rf"def {re.escape(test)}\(", content), f"{path} has no {test}"
        elif MODULE.fullmatch(text) and text not in {*BY_KEY, "penstock.log.level", "penstock.yaml"}:
            assert found(text), f"{text} is not there"


def found(name: str) -> bool:
    """Whether a dotted name leads to something: modules as far as they go, attributes from there."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


def test_tests_named_without_their_file_exist() -> None:
    """A page may name several tests of one file, and the file only once."""
    files = [*(ROOT / "tests").rglob("*.py"), *SOURCE.rglob("*.py")]
    defined = set(re.findall(r"def (test_\w+)\(", "\n".join(file.read_text(encoding="utf-8") for file in files)))
    words = {word for page in PAGES for word in CODE.findall(page.read_text(encoding="utf-8"))}
    assert {word for word in words if re.fullmatch(r"test_\w+", word)} <= defined


def test_every_error_is_described_as_it_is() -> None:
    rows = first_cells(REFERENCE / "errors.md")
    for error in every_error():
        assert error.__name__ in rows, f"{error.__name__} is not in reference/errors.md"
        _, under, retryable, _ = rows[error.__name__]
        assert retryable == ("yes" if error.retryable else "no"), error.__name__
        if error is not PenstockError:
            assert under == f"`{error.__base__.__name__}`", error.__name__  # type: ignore[union-attr]


def test_every_failpoint_is_described() -> None:
    rows = first_cells(REFERENCE / "failpoints.md")
    assert {name: rows[name][1] for name in POINTS if name in rows} == POINTS
    assert {name for name in rows if "." in name} == POINTS.keys()


def test_every_public_name_is_described() -> None:
    rows = first_cells(REFERENCE / "settings.md")
    assert set(penstock.__all__) - rows.keys() == set()


def test_every_variable_is_described() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    used = set(re.findall(r"PENSTOCK_[A-Z_]*[A-Z]", text))
    assert used
    assert used == {name for name in first_cells(REFERENCE / "settings.md") if name.startswith("PENSTOCK_")}


def test_every_event_is_described() -> None:
    emitted = {"supervisor"}
    for file in SOURCE.rglob("*.py"):
        if file.name != "supervisor.py":  # it emits one event, `supervisor`, with an action
            emitted |= set(re.findall(r"\b_?emit(?:_rows)?\(\s*\"(\w+)\"", file.read_text("utf-8")))
    assert emitted == first_cells(REFERENCE / "events.md").keys() - {"event"}


def test_every_session_default_is_described() -> None:
    from penstock.spark import session as spark

    rows = first_cells(REFERENCE / "settings.md")
    assert set(spark._defaults("local[2]", local_storage=True)) - rows.keys() == set()


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not [named(page) for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in menu]


def test_links_of_the_pages_outside_docs_lead_somewhere() -> None:
    """mkdocs looks after its own pages."""
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (ROOT / target).exists(), f"{page.name} links to {target}"


def test_modules_named_on_the_tour_exist() -> None:
    """`room/module.py`, as the page with the tour and the design notes name them."""
    every_sink_has = {"sink.py", "writer.py", "committer.py"}
    for page in ("architecture.md", "design-notes.md"):
        names = CODE.findall((DOCS / page).read_text(encoding="utf-8"))
        for name in {name for name in names if re.fullmatch(r"[a-z_]+(/\w+)*(\.py|/)", name)} - every_sink_has:
            assert (SOURCE / name).exists() or (ROOT / name).exists(), f"{page} names {name}"


def test_every_room_is_on_the_tour_in_its_order() -> None:
    layers = draw_modules.read_layers(ROOT)
    text = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## The rooms")[2].partition("\n## ")[0]
    named = [CODE.findall(line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    assert named == layers


def test_every_public_name_is_in_the_api_reference_once() -> None:
    entries = re.findall(
        r"^::: (\S+)$", "\n".join(p.read_text(encoding="utf-8") for p in (REFERENCE / "api").glob("*.md")), re.M
    )
    assert {f"penstock.{name}" for name in penstock.__all__ if name != "PenstockError"} <= set(entries)
    assert len(entries) == len(set(entries))
    assert "penstock.errors" in entries  # and with it PenstockError


def test_the_readme_and_the_index_agree() -> None:
    """The index begins as the README does; rows of both tables with the same aim name the same pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    shared, found, rest = (DOCS / "index.md").read_text(encoding="utf-8").partition("[How to install it")
    assert found
    assert [part for part in shared.split("\n\n") if part not in readme] == []
    aims = [dict(re.findall(r"^\| ([^|]+) \| (\[.+) \|$", text, re.M)) for text in (readme, rest)]
    in_both = aims[0].keys() & aims[1].keys()
    assert len(in_both) > 5
    differing = {aim for aim in in_both if aims[0][aim].removesuffix(", [`examples`](examples)") != aims[1][aim]}
    assert differing == {"work on Penstock"}, "whose README row also names files outside the site"
