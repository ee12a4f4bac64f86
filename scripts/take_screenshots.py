"""Takes the pictures of the page that stand in the documentation, from runs that never ran: the same picture each time.

    python -m scripts.take_screenshots [--into docs/assets]

Needs Chromium (on Debian: apt install chromium) and the dev group of `pyproject.toml`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.browser import browsing
from tests.support.page_data import Run, crashed, two_queries, typical_runs
from tests.support.page_server import PageWorld, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[1]
NOON = 1_790_000_000_000  # some day in 2026: what the pictures show does not depend on when they are taken
WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

#: name of the picture: which run, which part, colours, size
PICTURES = {
    "page-overview-light": ("payments", "overview", "light", WIDE),
    "page-overview-dark": ("payments", "overview", "dark", WIDE),
    "page-checkpoints-light": ("payments", "checkpoints/history", "light", WIDE),
    "page-transactions-dark": ("totals", "transactions", "dark", WIDE),
    "page-audit-light": ("payments", "audit", "light", WIDE),
    "page-phone": ("payments", "overview", "light", PHONE),
    "page-two-queries-light": ("shop", "checkpoints/summary", "light", WIDE),
    "page-crashed-light": ("fraud", "exceptions", "light", WIDE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "assets")
    given = parser.parse_args()
    runs = [run for run in (*typical_runs(NOON), two_queries(NOON), crashed(NOON)) if not run.name.startswith("<")]
    world = PageWorld(runs, clock=lambda: NOON)
    with serving(world) as address, browsing() as browser:
        for name, (job, part, colours, size) in PICTURES.items():
            run = next(run for run in world.runs.values() if run.name == job)
            take(browser, f"{address}#/runs/{run.id}/{part}", run, colours, size, given.into / f"{name}.png")


def take(browser: Browser, address: str, run: Run, colours: str, size: dict[str, int], file: Path) -> None:
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        color_scheme=colours,  # type: ignore[arg-type]
        timezone_id="UTC",
        device_scale_factor=1 if size is WIDE else 1.5,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.clock.set_fixed_time(NOON / 1000)
    page.goto(address)
    page.locator("#tab-panel table, #tab-panel .chart").first.wait_for()
    if "history" in address:
        page.locator(".opener").nth(3).click()
        page.get_by_text("Reached the barrier").wait_for()
    if run.live:
        page.get_by_text("Live", exact=True).wait_for()
    page.screenshot(path=file)
    context.close()


if __name__ == "__main__":
    main()
