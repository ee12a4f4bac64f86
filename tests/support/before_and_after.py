"""The pairs "before" and "after" of docs/how-to/connect.md, by the place that they are for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "connect.md"
_PAIR = re.compile(
    r"^\*\*(?P<place>[\w ]+)\*\*\n\n<!-- fragment -->\n```python\n"
    r"# before[^\n]*\n(?P<before>.*?)\n# after[^\n]*\n(?P<after>.*?)```",
    re.DOTALL | re.MULTILINE,
)
_TOPIC = re.compile(r'(topic=|"topic": |KafkaSink\()"alerts"')


def pair(place: str, topic: str) -> tuple[str, str]:
    """Its code before and after, with a topic of its own."""
    found = {match["place"]: match for match in _PAIR.finditer(PAGE.read_text())}[place]
    before, after = (_TOPIC.sub(rf'\1"{topic}"', found[part]) for part in ("before", "after"))
    assert topic in before
    assert topic in after
    assert len(after.splitlines()) <= 3, "three lines are promised"
    return before, after


def run(code: str, **names: Any) -> None:
    """As a cell of a program that has these names."""
    servers = names["servers"]
    exec(compile(code, str(PAGE), "exec"), {**names, "kafka": {"kafka.bootstrap.servers": servers}})
