"""Draws the Mermaid diagrams of the pages into `docs/diagrams`, where the build takes them from.

    make diagrams        # or: python scripts/draw_diagrams.py [--check]

Pages keep a diagram as Mermaid source, which code hosts show as a picture. The built site must show it too, in a
browser without a way to any other host, so it is drawn here, once, by Mermaid itself in a small JavaScript engine (the
package `mermaidx`, in the dependency group `diagrams`). The pictures are committed, because drawing takes a minute and
an engine that nothing else needs; each carries the checksum of its source, and the build stops where it does not fit.
Colours are CSS variables with the light colour as fallback; `docs/assets/diagrams.css` sets the dark ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DIAGRAMS = DOCS / "diagrams"

FENCE = re.compile(r"^```mermaid\n(?P<source>.*?)^```", re.M | re.S)

#: What each colour is for, and its light value. No two are equal: they are found again in what Mermaid has drawn.
COLOURS = {
    "ground": "#fefefe",
    "text": "#1f2328",
    "line": "#57606a",
    "box": "#eef2fb",
    "border": "#4a63b8",
    "note": "#fff3d6",
    "note-border": "#b7791f",
    "group": "#f6f8fa",
    "group-border": "#d0d7de",
    "done": "#dfe4ec",
    "busy": "#b9c8f3",
    "wait": "#f7cfc9",
    "wait-border": "#b3412e",
}

#: Mermaid's variables by the colour they get.
VARIABLES = {
    "ground": "background edgeLabelBackground labelBackgroundColor innerEndBackground",
    "text": (
        "primaryTextColor secondaryTextColor tertiaryTextColor textColor titleColor noteTextColor "
        "nodeTextColor actorTextColor signalTextColor labelTextColor loopTextColor stateLabelColor "
        "transitionLabelColor taskTextColor taskTextDarkColor taskTextLightColor taskTextOutsideColor"
    ),
    "line": (
        "lineColor defaultLinkColor signalColor arrowheadColor transitionColor specialStateColor "
        "gridColor todayLineColor"
    ),
    "box": "primaryColor mainBkg actorBkg stateBkg labelBoxBkgColor taskBkgColor",
    "border": (
        "primaryBorderColor nodeBorder actorBorder stateBorder labelBoxBorderColor taskBorderColor "
        "activeTaskBorderColor"
    ),
    "note": "noteBkgColor",
    "note-border": "noteBorderColor",
    "group": (
        "secondaryColor tertiaryColor clusterBkg compositeBackground sectionBkgColor altSectionBkgColor "
        "sectionBkgColor2"
    ),
    "group-border": "clusterBorder actorLineColor doneTaskBorderColor secondaryBorderColor tertiaryBorderColor",
    "done": "doneTaskBkgColor",
    "busy": "activeTaskBkgColor",
    "wait": "critBkgColor",
    "wait-border": "critBorderColor",
}

#: Selectors in Mermaid's style sheets for what none of our diagrams has.
UNUSED = re.compile("data-look|mermaidTooltip|actorPopup|katex|edge-animation|error-|neo-node|:root|clickable|-shape")
RULE = re.compile(r"(?P<selectors>#[^{}]*)\{[^{}]*\}")
FONT = '"trebuchet ms",verdana,arial,sans-serif'


@dataclass(frozen=True)
class Diagram:
    """One diagram of one page, and the file that holds its picture."""

    page: Path
    number: int
    source: str

    @property
    def name(self) -> str:
        """As `concepts-epochs-1`: where it stands, counted from the page's top."""
        return "-".join([*self.page.relative_to(DOCS).with_suffix("").parts, str(self.number)])

    @property
    def picture(self) -> Path:
        return DIAGRAMS / f"{self.name}.svg"

    @property
    def checksum(self) -> str:
        return checksum(self.source)

    @property
    def is_drawn(self) -> bool:
        """Whether the picture is there and was drawn from this very source."""
        return (
            self.picture.exists() and f'data-source="{self.checksum}"' in self.picture.read_text(encoding="utf-8")[:400]
        )


def checksum(source: str) -> str:
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def find_diagrams() -> Iterator[Diagram]:
    """Every diagram of every page, in the order of the pages' names."""
    for page in sorted(DOCS.rglob("*.md")):
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), start=1):
            yield Diagram(page, number, match["source"])


def draw(diagram: Diagram) -> str:
    """The picture as SVG that can stand inside a page: its ids are its own, its colours follow the page."""
    import mermaidx  # type: ignore[import-not-found, unused-ignore]

    theme = {name: COLOURS[colour] for colour, names in VARIABLES.items() for name in names.split()}
    settings = {
        "theme": "base",
        "themeVariables": theme,
        "htmlLabels": False,  # text as SVG text: the page's own styles for paragraphs do not reach into it
        # Narrow enough for the letters to stay legible in the column of a page.
        "flowchart": {
            "htmlLabels": False,
            "nodeSpacing": 28,
            "rankSpacing": 36,
            "wrappingWidth": 180,
            "subGraphTitleMargin": {"top": 4, "bottom": 14},
        },
        "state": {"nodeSpacing": 28, "rankSpacing": 36},
        "sequence": {
            "actorMargin": 16,
            "width": 130,
            "height": 44,
            "messageMargin": 28,
            "boxMargin": 6,
            "mirrorActors": False,
            "wrap": True,
        },
        "gantt": {"leftPadding": 84, "rightPadding": 40, "barHeight": 22, "fontSize": 13, "sectionFontSize": 13},
    }
    svg: str = mermaidx.render(f"%%{{init: {json.dumps(settings)}}}%%\n{diagram.source}").svg()
    return tidy(svg, diagram)


def tidy(svg: str, diagram: Diagram) -> str:
    """Mermaid's drawing as a part of a page: ids of its own, the page's letters and colours, no rule without use."""
    svg = svg.replace("my-svg", f"diagram-{diagram.name}")
    svg = re.sub(r' id="(?!diagram-)([^"]+)"', rf' id="diagram-{diagram.name}-\1"', svg)
    svg = re.sub(r"url\(#(?!diagram-)", f"url(#diagram-{diagram.name}-", svg)
    svg = re.sub(r'href="#(?!diagram-)', f'href="#diagram-{diagram.name}-', svg)
    svg = re.sub(r"@keyframes [\w-]+\{(?:[^{}]|\{[^{}]*\})*\}", "", svg)
    svg = RULE.sub(lambda rule: rule[0] if is_used(rule["selectors"]) else "", svg)
    svg = svg.replace(FONT, "inherit")
    for name, colour in COLOURS.items():
        svg = re.sub(rf"{colour}\b", f"var(--diagram-{name}, {colour})", svg, flags=re.I)
    svg = svg.replace("<svg ", f'<svg data-source="{diagram.checksum}" ', 1)
    return svg.replace("><g", ">\n<g").replace("}#diagram", "}\n#diagram") + "\n"


def is_used(selectors: str) -> bool:
    """Whether a rule with these selectors may be for something that is drawn."""
    return not all(UNUSED.search(selector) for selector in selectors.split(","))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw the Mermaid diagrams of the pages.")
    parser.add_argument("--check", action="store_true", help="draw nothing; fail if a picture is missing or old")
    parser.add_argument("--all", action="store_true", help="draw also what has not changed")
    options = parser.parse_args(arguments)
    diagrams = list(find_diagrams())
    missing = [diagram for diagram in diagrams if not diagram.is_drawn]
    unused = sorted(set(DIAGRAMS.glob("*.svg")) - {diagram.picture for diagram in diagrams})
    if options.check:
        for diagram in missing:
            sys.stderr.write(f"{diagram.name}: not drawn since its source changed; run make diagrams\n")
        for path in unused:
            sys.stderr.write(f"{path.name}: no page has this diagram; run make diagrams\n")
        return 1 if missing or unused else 0
    DIAGRAMS.mkdir(exist_ok=True)
    for diagram in diagrams if options.all else missing:
        diagram.picture.write_text(draw(diagram), encoding="utf-8")
        sys.stdout.write(f"drawn: {diagram.picture.relative_to(ROOT)}\n")
    for path in unused:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
