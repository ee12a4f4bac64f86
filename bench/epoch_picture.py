"""The steps of an epoch, from what is known of its times, and a picture of their medians."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

#: In the order in which they happen.
STEPS = {
    "latest": "Spark asks for the newest offsets",
    "offsets": "Spark writes offsets/N",
    "planning": "Spark plans the batch",
    "entering": "until foreachBatch is entered",
    "submitting": "until the first task runs",
    "tasks": "tasks: read, write, flush",
    "collecting": "until all is sealed",
    "deciding": "the decision is written",
    "committing": "committed at the sink",
    "leaving": "until foreachBatch returns",
    "commits": "Spark writes commits/N",
    "rest": "else between epochs",
}
_COLOURS = (
    "#7aa6c2",
    "#3d6f8e",
    "#9cc5a1",
    "#d9c77e",
    "#e0a458",
    "#c8553d",
    "#a26769",
    "#6d597a",
    "#355070",
    "#8d99ae",
)


def profile_of(epochs: Mapping[str, Mapping[str, Any]], begin: float, end: float) -> list[dict[str, float]]:
    """The steps, in milliseconds, of each epoch that was opened between the two times and is known in full."""
    found = []
    for one in epochs.values():
        spark = one["spark"]
        if not {"opened", "launched", "ran", "precommitted", "decided", "committed", "completed"} <= one.keys():
            continue
        if "addBatch" not in spark or not begin <= one["opened"] < end:
            continue
        steps = {
            "latest": float(spark.get("latestOffset", 0)),
            "offsets": float(spark.get("walCommit", 0)),
            "planning": float(spark.get("queryPlanning", 0) + spark.get("getBatch", 0)),
            "entering": max(0.0, spark["addBatch"] - (one["completed"] - one["opened"]) * 1000),
            "submitting": (one["launched"] - one["opened"]) * 1000,
            "tasks": (one["ran"] - one["launched"]) * 1000,
            "collecting": (one["precommitted"] - one["ran"]) * 1000,
            "deciding": (one["decided"] - one["precommitted"]) * 1000,
            "committing": (one["committed"] - one["decided"]) * 1000,
            "leaving": (one["completed"] - one["committed"]) * 1000,
            "commits": float(spark.get("commitOffsets", 0)),
        }
        known = steps["latest"] + steps["offsets"] + steps["planning"] + spark["addBatch"] + steps["commits"]
        steps["rest"] = max(0.0, spark["triggerExecution"] - known)
        found.append(steps)
    return found


def draw(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A bar for each result, its steps one after the other."""
    width, left, bar, gap = 900, 110, 34, 26
    longest = max(sum(one["steps_ms"].values()) for one in results.values())
    scale = (width - left - 60) / longest
    rows = []
    for number, (label, one) in enumerate(results.items()):
        x, y = float(left), 20 + number * (bar + gap)
        rows.append(f'<text x="{left - 8}" y="{y + bar / 2 + 4}" text-anchor="end">{escape(label)}</text>')
        for index, step in enumerate(STEPS):
            wide = one["steps_ms"][step] * scale
            colour = _COLOURS[index % len(_COLOURS)]
            said = f"{STEPS[step]}: {one['steps_ms'][step]:.1f} ms"
            rows.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{bar}" fill="{colour}">'
                f"<title>{escape(said)}</title></rect>"
            )
            x += wide
        rows.append(f'<text x="{x + 6:.1f}" y="{y + bar / 2 + 4}">{sum(one["steps_ms"].values()):.0f} ms</text>')
    top = 20 + len(results) * (bar + gap)
    for index, (step, text) in enumerate(STEPS.items()):
        x, y = left + (index % 2) * 390, top + (index // 2) * 20
        shown = " → ".join(f"{one['steps_ms'][step]:.1f}" for one in results.values())
        rows.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{_COLOURS[index % len(_COLOURS)]}"/>')
        rows.append(f'<text x="{x + 18}" y="{y + 11}">{escape(text)}: {shown} ms</text>')
    height = top + (len(STEPS) + 1) // 2 * 20 + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13"'
        ' font-family="sans-serif" fill="#57606a">\n<title>Where the time of a short epoch goes</title>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )
