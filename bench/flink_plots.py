"""Pictures of what the benchmark beside Flink found: plain SVG that a browser shows in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rounds import Spread

TITLES = {
    "bench-throughput.svg": "Rows per second, Kafka to Kafka",
    "bench-latency.svg": "Latency at 2,000 rows a second, p50 and p99, by checkpoint interval",
    "bench-silence.svg": "Seconds that a reader sees nothing after kill -9",
    "bench-writers.svg": "Seal and commit of an epoch against its writers",
    "bench-history.svg": "An epoch against the epochs before it",
}
_WORKS = {"bytes": "bytes through", "json": "JSON", "keys": "million keys"}
_COLOURS = ("a", "b", "c", "d", "e")
_WIDTH, _LEFT, _BAR, _GAP = 760, 170, 18, 14
_STYLE = """
    text { fill: #1f2328; font-size: 13px; } .t { font-size: 15px; font-weight: 600; }
    .s { fill: #57606a; font-size: 12px; }
    .a { fill: #c2410c; } .b { fill: #4a63b8; } .c { fill: #8c959f; } .d { fill: #7a8fd6; } .e { fill: #e0915e; }
    .axis { stroke: #d0d7de; } .range { stroke: #1f2328; stroke-width: 1.5; }
    .line { stroke: #4a63b8; stroke-width: 2; fill: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .s { fill: #b1bac4; } .axis { stroke: #30363d; } .range { stroke: #e6edf3; }
      .b { fill: #8ea4e8; } .line { stroke: #8ea4e8; }
    }"""


def at_interval(case: str, behind: str = "") -> str:
    """A case `100` or `100 at 50000`, for people; any other as it is."""
    interval, _, rate = case.partition(" at ")
    if not interval.isdigit():
        return case
    return f"{int(interval):,} ms{behind}" + (f", {int(rate):,} rows/s" if rate else "")


def _numbers(case: str) -> list[int]:
    return [int(part) for part in case.split(" at ")]


def draw(results: Mapping[str, Any]) -> dict[str, str]:
    """By file name, those that there are results for."""
    made = {}
    if "throughput" in results:
        groups = {_WORKS[case]: _spreads(own, "rows_per_second") for case, own in results["throughput"].items()}
        made["bench-throughput.svg"] = bars("bench-throughput.svg", groups, "{:,.0f}")
    if "latency" in results:
        groups = {
            f"{at_interval(case)}, {percent}": _spreads(own, f"{percent}_ms")
            for case, own in sorted(results["latency"].items(), key=lambda one: _numbers(one[0]))
            for percent in ("p50", "p99")
        }
        made["bench-latency.svg"] = bars("bench-latency.svg", groups, "{:,.0f} ms")
    if "silence" in results:
        [case] = list(results["silence"].values())[:1]
        made["bench-silence.svg"] = bars("bench-silence.svg", {"": _spreads(case, "silence_seconds")}, "{:,.1f} s")
    if "writers" in results:
        points = [
            (int(count), sum(Spread.of(own["rounds"], f"{name}_seconds").median for name in ("seal", "commit")) * 1000)
            for count, own in results["writers"].items()
        ]
        made["bench-writers.svg"] = curve("bench-writers.svg", points, "writers")
    if "history" in results:
        points = [(int(count), ms) for count, ms in results["history"]["epoch_ms"].items()]
        made["bench-history.svg"] = curve("bench-history.svg", points, "epochs")
    return made


def _spreads(by_system: Mapping[str, Any], figure: str) -> dict[str, Spread]:
    return {system: Spread.of(own["rounds"], figure) for system, own in by_system.items()}


def bars(name: str, groups: Mapping[str, Mapping[str, Spread]], form: str) -> str:
    """A bar for each system in each group, with the range of its rounds."""
    most = max(one.most for group in groups.values() for one in group.values())
    systems = list(dict.fromkeys(system for group in groups.values() for system in group))
    scale = (_WIDTH - _LEFT - 130) / most
    parts, top = [], 58
    for place, system in enumerate(systems):
        x = _LEFT + place * 130
        parts.append(f'<rect class="{_COLOURS[place]}" x="{x}" y="34" width="12" height="12"/>')
        parts.append(f'<text class="s" x="{x + 17}" y="44">{escape(system)}</text>')
    for group, by_system in groups.items():
        middle = top + len(by_system) * _BAR / 2 + 4
        parts.append(f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(group)}</text>')
        for system, found in by_system.items():
            kind, width, y = _COLOURS[systems.index(system)], found.median * scale, top + _BAR / 2 - 1
            least, far = _LEFT + found.least * scale, _LEFT + found.most * scale
            parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 3}"/>')
            parts.append(f'<line class="range" x1="{least:.1f}" y1="{y:.0f}" x2="{far:.1f}" y2="{y:.0f}"/>')
            text = form.format(found.median)
            parts.append(f'<text class="s" x="{max(far, _LEFT + width) + 6:.0f}" y="{top + 12}">{text}</text>')
            top += _BAR
        top += _GAP
    return _svg(name, top, parts)


def curve(name: str, points: Sequence[tuple[int, float]], unit: str) -> str:
    """Milliseconds against a count, which grows by factors."""
    height, bottom = 240, 190
    most = max(value for _, value in points)
    low, high = math.log10(points[0][0]), math.log10(points[-1][0])
    span = (_WIDTH - 140) / max(high - low, 1e-9)
    placed = [(80 + (math.log10(count) - low) * span, bottom - value / most * 120) for count, value in points]
    parts = [f'<line class="axis" x1="70" y1="{bottom}" x2="{_WIDTH - 40}" y2="{bottom}"/>']
    parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}"/>')
    for (x, y), (count, value) in zip(placed, points, strict=True):
        parts.append(f'<circle class="b" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<text class="s" x="{x:.0f}" y="{y - 9:.0f}" text-anchor="middle">{value:,.0f} ms</text>')
        parts.append(f'<text class="s" x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{count:,}</text>')
    parts.append(f'<text class="s" x="{_WIDTH / 2:.0f}" y="{bottom + 38}" text-anchor="middle">{escape(unit)}</text>')
    return _svg(name, height, parts)


def _svg(name: str, height: float, parts: Sequence[str]) -> str:
    title = escape(TITLES[name])
    inside = "\n".join(f"  {part}" for part in [f'<text class="t" x="20" y="22">{title}</text>', *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{title}" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">\n"
        f"  <title>{title}</title>\n  <style>{_STYLE}\n  </style>\n{inside}\n</svg>\n"
    )
