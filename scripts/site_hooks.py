"""What `mkdocs build` does besides turning pages into HTML: it puts the drawings into them.

Nothing in a built page is fetched from another host: diagrams stand in it as SVG, not as source for a script.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from draw_diagrams import Diagram, checksum  # mkdocs puts this folder on the path while it loads a hook
from draw_modules import draw, list_rooms, read_house, tell
from mkdocs.exceptions import PluginError

SOURCE = re.compile(r'<pre class="mermaid"><code>(.*?)</code></pre>', re.S)
MAP = "<!-- the map of the house -->"
NUMBERS = "<!-- the numbers of the house -->"
ROOMS = "<!-- the rooms of the house -->"


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """The page with the list of rooms and modules, where it asks for it."""
    return markdown.replace(ROOMS, list_rooms(read_house())) if ROOMS in markdown else markdown


def on_page_content(html: str, /, *, page: Any, **_: Any) -> str:
    """The page with its diagrams, and the map of the house where it asks for one."""
    count = 0

    def picture(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        source = unescape(match[1])
        diagram = Diagram(Path(page.file.abs_src_path), count, source)
        if not diagram.is_drawn:
            raise PluginError(f"{diagram.name} ({checksum(source)}) was not drawn from this source: run make diagrams")
        return f'<div class="diagram">{diagram.picture.read_text(encoding="utf-8")}</div>'

    html = SOURCE.sub(picture, html)
    if MAP in html or NUMBERS in html:
        house = read_house()
        rows = "".join(f"<tr><td>{name}</td><td>{escape(value)}</td></tr>" for name, value in tell(house))
        html = html.replace(MAP, f'<div class="diagram">{draw(house)}</div>')
        html = html.replace(NUMBERS, f"<table><tbody>{rows}</tbody></table>")
    return html
