"""The page in Chromium: how long it takes to open over a long history, and what an open page costs the server.

The server is the stand-in of the page's tests, in a process of its own, with a run of so many epochs that goes on: what
is measured is the page and the serving of it, not the reading of a job's files. `--url` and `--pid` measure a real one
instead: the address with its one-time code, and the process whose time is counted.

Prints both numbers and writes bench/results/page.json.

    python bench/bench_page.py [--epochs 10000] [--seconds 30] [--url URL --pid PID]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a benchmark is started as a script, and the stand-in is the tests'

from neighbours import Neighbours  # noqa: E402
from tests.support.browser import browsing  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two epochs of the stand-in")
    parser.add_argument("--opens", type=int, default=5, help="how often it is opened")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the open page is watched")
    parser.add_argument("--url", help="of a page that is served already")
    parser.add_argument("--pid", type=int, help="of the process that serves it")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "page.json")
    given = parser.parse_args()
    if bool(given.url) != bool(given.pid):
        parser.error("--url and --pid belong together")
    with Neighbours() as others, browsing() as browser:
        if given.url:
            results = measure(browser, given.url, given.pid, given.opens, given.seconds)
        else:
            with stand_in(given.epochs, given.every) as (url, pid):
                results = measure(browser, url, pid, given.opens, given.seconds)
    table = Table(title=f"The page over {given.epochs:,} epochs" if not given.url else given.url)
    table.add_column("what")
    table.add_column("value", justify="right")
    for part, seconds in results["open_seconds"].items():
        table.add_row(f"{part}: from nothing to drawn, median", f"{seconds:.2f} s")
    table.add_row("the server without a page, share of a core", f"{results['idle_share']:.2%}")
    table.add_row("the server with an open page, share of a core", f"{results['open_share']:.2%}")
    console.print(table)
    console.print(f"other processes took {others.cores:.2f} cores meanwhile")
    body = {"epochs": given.epochs, "other_cores": round(others.cores, 2), **results}
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def measure(browser: Browser, url: str, pid: int, opens: int, seconds: float) -> dict[str, Any]:
    """Each open is in a context of its own: nothing is there from before but the cookie that the code has bought."""
    idle = share(pid, seconds / 3)
    first = browser.new_context()
    page = first.new_page()
    page.goto(url)
    run = (page.locator("tbody a").first.get_attribute("href") or "").split("/")[2]
    cookies, root = first.storage_state(), page.url.partition("#")[0]
    first.close()
    opened: dict[str, float] = {}
    parts = {"overview": ".chart > svg path.line", "checkpoints/history": "tbody tr:nth-child(50) .phases"}
    for part, drawn in parts.items():
        times = []
        for _ in range(opens):
            context = browser.new_context(storage_state=cookies)
            page = context.new_page()
            began = time.perf_counter()
            page.goto(f"{root}#/runs/{run}/{part}")
            page.locator(drawn).first.wait_for()
            times.append(time.perf_counter() - began)
            context.close()
        opened[part] = round(statistics.median(times), 3)
    context = browser.new_context(storage_state=cookies)
    page = context.new_page()
    page.goto(f"{root}#/runs/{run}/overview")
    page.locator(parts["overview"]).first.wait_for()
    page.wait_for_timeout(2000)
    watched = share(pid, seconds)
    context.close()
    return {"open_seconds": opened, "idle_share": idle, "open_share": watched}


def share(pid: int, seconds: float) -> float:
    """Of a core, that a process takes during the next seconds."""
    before, began = ticks(pid), time.perf_counter()
    time.sleep(seconds)
    return round((ticks(pid) - before) / TICKS / (time.perf_counter() - began), 5)


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def stand_in(epochs: int, every: float) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "tests.support.page_server", "--epochs", str(epochs), "--every", str(every)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server.pid
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
