"""The drawings of the documentation, and the site built with them, which fetches nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import draw_diagrams, draw_modules

import penstock

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

STYLE_REQUEST = re.compile(r"(?:url\(|@import )([^);]*)")


class Requests(HTMLParser):
    """What a browser fetches for a page without being asked: scripts, styles, fonts, images, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        fetched = ["src", "srcset", "data", "poster", "xlink:href"]
        if tag in {"image", "use"} or (tag == "link" and values.get("rel") not in {"canonical", "next", "prev"}):
            fetched.append("href")
        self.found += [values[name] for name in fetched if name in values]
        self.found += STYLE_REQUEST.findall(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._style:
            self.found += STYLE_REQUEST.findall(data)


def asked_hosts(html: str) -> list[str]:
    requests = Requests()
    requests.feed(html)
    return [target for target in requests.found if re.match(r"""["'\s]*(https?:)?//""", target)]


def test_every_diagram_was_drawn_from_the_source_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert draw_diagrams.main(["--check"]) == 0, capsys.readouterr().err
    assert list(draw_diagrams.find_diagrams())


def test_a_changed_diagram_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_diagrams, "DOCS", tmp_path)
    monkeypatch.setattr(draw_diagrams, "DIAGRAMS", tmp_path / "diagrams")
    (tmp_path / "page.md").write_text("```mermaid\nflowchart TD\n  a --> b\n```\n", encoding="utf-8")
    assert draw_diagrams.main(["--check"]) == 1
    (diagram,) = draw_diagrams.find_diagrams()
    diagram.picture.parent.mkdir()
    diagram.picture.write_text(f'<svg data-source="{diagram.checksum}"></svg>', encoding="utf-8")
    assert draw_diagrams.main(["--check"]) == 0
    (tmp_path / "page.md").write_text("```mermaid\nflowchart TD\n  a --> c\n```\n", encoding="utf-8")
    assert draw_diagrams.main(["--check"]) == 1


def test_pictures_ask_nobody_and_follow_the_scheme() -> None:
    for picture in draw_diagrams.DIAGRAMS.glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert not asked_hosts(text), picture.name
        assert "var(--diagram-text" in text, picture.name
    dark = (DOCS / "assets" / "diagrams.css").read_text(encoding="utf-8")
    assert {name for name in draw_diagrams.COLOURS if f"--diagram-{name}:" not in dark} == set()


def test_the_map_has_every_room_and_nothing_goes_upward() -> None:
    house = draw_modules.read_house(ROOT)
    assert {draw_modules.room_of(module) for module in house.modules} - {""} == set(house.rooms)
    assert house.upward() == []
    assert draw_modules.find_cycles(house.room_imports()) == []
    drawing = draw_modules.draw(house)
    assert drawing.count("<circle") == len(house.room_imports())
    assert all(f">{room}</text>" in drawing for room in house.rooms)
    assert draw_modules.draw(draw_modules.read_house(ROOT)) == drawing


def test_the_map_shows_what_it_must(tmp_path: Path) -> None:
    """A small house with an import upward, inside a function, and a ring of two modules."""
    contract = (
        '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["penstock"]\nlayers = ["top", "low | side"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(contract, encoding="utf-8")
    package = tmp_path / "src" / "penstock"
    for name, text in {
        "__init__.py": "",
        "top/__init__.py": '"""The top. More."""\nfrom penstock.low import a\n',
        "top/b.py": "from . import c\n",
        "top/c.py": "def f():\n    from .b import x\n",
        "low/__init__.py": "",
        "low/a.py": "def f():\n    import penstock.top.b\n",
        "side.py": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    house = draw_modules.read_house(tmp_path)
    assert house.layers == [["top"], ["low", "side"]]
    assert house.room_imports() == {("top", "low"): 1, ("low", "top"): 1}
    assert [(each.importer, each.imported) for each in house.upward()] == [("penstock.low.a", "penstock.top.b")]
    numbers = dict(draw_modules.tell(house))
    assert numbers["cycles between rooms"] == "low, top"
    assert numbers["cycles between modules"] == "penstock.top.b, penstock.top.c"
    assert draw_modules.purpose_of(house, "top", 40) == "The top"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` builds them."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make setup brings it (dependency group docs)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_what_asks_another_host_is_found() -> None:
    assert asked_hosts('<script src="https://cdn.example/x.js"></script>')
    assert asked_hosts('<link rel="stylesheet" href="//fonts.example/css">')
    assert asked_hosts("<style>@import 'https://x.example/a.css';</style>")
    assert asked_hosts('<div style="background: url(https://x.example/a.png)"></div>')
    assert not asked_hosts(
        '<a href="https://x.example"></a><img src="../assets/epoch.svg"><link rel="canonical" href="https://x.example">'
    )


def test_no_built_page_asks_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) / 2
    for page in pages:
        assert not asked_hosts(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        targets = re.findall(r"url\(([^)]*)\)|@import ([^;]+)", style.read_text(encoding="utf-8"))
        assert not [target for target in targets if re.search(r"(https?:)?//", "".join(target).split("data:")[0])], (
            style
        )


def test_every_diagram_is_a_picture_in_the_built_page(site: Path) -> None:
    """Not source that a script, fetched from elsewhere, would have to draw."""
    for diagram in draw_diagrams.find_diagrams():
        html = (site / diagram.page.relative_to(DOCS).with_suffix("") / "index.html").read_text(encoding="utf-8")
        assert f'<div class="diagram"><svg data-source="{diagram.checksum}"' in html, diagram.name
    for page in site.rglob("*.html"):
        assert 'class="mermaid"' not in page.read_text(encoding="utf-8"), page


def test_the_built_tour_has_the_map_and_the_numbers_of_today(site: Path) -> None:
    house = draw_modules.read_house(ROOT)
    html = (site / "architecture" / "index.html").read_text(encoding="utf-8")
    assert draw_modules.draw(house).strip() in html
    assert f"<td>{len(house.modules)}</td>" in html
    modules = (site / "modules" / "index.html").read_text(encoding="utf-8")
    assert [room for room in house.rooms if f'id="{room}"' not in modules] == []


def test_the_built_api_reference_has_every_public_name(site: Path) -> None:
    html = "".join(page.read_text(encoding="utf-8") for page in (site / "reference" / "api").rglob("*.html"))
    for name in penstock.__all__:
        module = penstock._WHERE[name]
        assert any(f'id="{prefix}.{name}"' in html for prefix in ("penstock", module)), name
