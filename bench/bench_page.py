"""The page in Chromium: how long it takes to open over a long history, and what an open page costs a real driver.

The history is that of a run which has ended, in the files that a run leaves, served by `penstock ui`. The driver is a
real job with an epoch every five seconds; its processor time is taken with and without a page open at its own
address, by turns, and the difference is the page's.

Prints the numbers and writes bench/results/page.json.

    python bench/bench_page.py [--epochs 10000] [--seconds 20] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a benchmark is started as a script, and some helpers are the tests'

from memory import family  # noqa: E402
from neighbours import Neighbours  # noqa: E402
from penstock.ops.process.registry import Entry, Registry, State, now_ms  # noqa: E402
from tests.support.browser import browsing  # noqa: E402
from tests.support.long_history import write_history  # noqa: E402
from tests.support.ui_link import link_of  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()")
PARTS = {"overview": ".chart > svg path.line", "checkpoints/history": "tbody tr:nth-child(50) .phases"}
JOB = """
from penstock import Checkpoints, DataGenSource, FileSink, Job

job = Job("payments", checkpoints=Checkpoints(interval="5s", storage="checkpoints"), conf={"spark.master": "local[1]"})
rows = job.read(DataGenSource(rate=1000, columns={"id": "id"}), uid="payments")
job.write(rows, FileSink("out"), uid="out")

if __name__ == "__main__":
    job.run()
"""
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--opens", type=int, default=5, help="how often it is opened")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one turn at the driver")
    parser.add_argument("--turns", type=int, default=3, help="with and without a page; 0 leaves the driver out")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "page.json")
    given = parser.parse_args()
    with Neighbours() as others, tempfile.TemporaryDirectory() as folder, browsing() as browser:
        os.environ["PENSTOCK_HOME"] = f"{folder}/home"
        results: dict[str, Any] = {"open_seconds": measure_opening(browser, given.epochs, given.opens)}
        if given.turns:
            results |= measure_driver(browser, Path(folder), given.seconds, given.turns)
    table = Table(title=f"The page over {given.epochs:,} epochs")
    table.add_column("what")
    table.add_column("value", justify="right")
    for part, seconds in results["open_seconds"].items():
        table.add_row(f"{part}: from nothing to drawn{', median' if part in PARTS else ''}", f"{seconds:.2f} s")
    for name in ("python", "java") if given.turns else ():
        own = results[name]
        table.add_row(f"the driver's {name} without a page, share of a core", f"{own['without']:.2%}")
        table.add_row(f"the driver's {name} with an open page", f"{own['with']:.2%}")
    if given.turns:
        table.add_row("an open page costs the driver, share of a core", f"{results['page']:.2%}")
    console.print(table)
    console.print(f"other processes took {others.cores:.2f} cores meanwhile")
    body = {"epochs": given.epochs, "other_cores": round(others.cores, 2), **results}
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


# Opening


def measure_opening(browser: Browser, epochs: int, opens: int) -> dict[str, float]:
    """Each open is in a context of its own: nothing is there from before but the session that the code has bought."""
    run = uuid.uuid4().hex
    Registry().put(Entry(run, "payments", State.FINISHED, start=now_ms() - 60_000, end=now_ms()))
    write_history(run, epochs)
    opened: dict[str, float] = {}
    with ui() as link:
        session, root = log_in(browser, link)
        for part, drawn in PARTS.items():
            times = [open_once(known(browser, session), f"{root}#/runs/{run}/{part}", drawn)
                     for _ in range(opens)]  # fmt: skip
            opened[part] = round(statistics.median(times), 3)
            opened.setdefault("overview, the very first time", round(times[0], 3))
    return opened


def open_once(context: BrowserContext, address: str, drawn: str) -> float:
    page = context.new_page()
    began = time.perf_counter()
    page.goto(address)
    page.locator(drawn).first.wait_for()
    took = time.perf_counter() - began
    context.close()
    return took


def known(browser: Browser, session: str) -> BrowserContext:
    context = browser.new_context()
    context.add_init_script(f"sessionStorage.setItem('penstock-session', '{session}')")
    return context


def log_in(browser: Browser, link: str) -> tuple[str, str]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.get_by_role("heading", name="Runs").wait_for()
    session, root = str(page.evaluate("sessionStorage.getItem('penstock-session')")), page.url.partition("#")[0]
    context.close()
    return session, root


@contextmanager
def ui() -> Iterator[str]:
    """The link of a `penstock ui`."""
    server = subprocess.Popen([*COMMAND, "ui", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        yield link_of(server)
    finally:
        server.terminate()
        server.wait(10)


# The driver


def measure_driver(browser: Browser, folder: Path, seconds: float, turns: int) -> dict[str, Any]:
    (folder / "job.py").write_text(JOB)
    run = penstock(folder, "run", "-d", "job.py")["id"]
    try:
        session, root = log_in(browser, penstock(folder, "ui", "payments")["link"])
        entry = Registry().get(run)
        assert entry is not None
        assert entry.pid is not None
        java = next(pid for pid in family(entry.pid) if "java" in Path(f"/proc/{pid}/cmdline").read_text())
        pids = {"python": entry.pid, "java": java}
        time.sleep(2 * seconds)  # Java compiles as it goes
        without: list[dict[str, float]] = []
        looked: list[dict[str, float]] = []
        for _ in range(turns):
            without.append(shares(pids, seconds))
            context = known(browser, session)
            page = context.new_page()
            page.goto(f"{root}#/runs/{run}/overview")
            page.locator("#connection", has_text="Live").wait_for()
            page.wait_for_timeout(2000)
            looked.append(shares(pids, seconds, page.wait_for_timeout))
            context.close()
    finally:
        penstock(folder, "cancel", run)
    means = {
        name: {
            "without": statistics.fmean(one[name] for one in without),
            "with": statistics.fmean(one[name] for one in looked),
        }
        for name in pids
    }
    return {**means, "page": sum(one["with"] - one["without"] for one in means.values())}


def penstock(folder: Path, verb: str, *arguments: str) -> Any:
    result = subprocess.run(
        [*COMMAND, verb, "--json", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def shares(pids: dict[str, int], seconds: float, wait: Any = None) -> dict[str, float]:
    """Of a core, that each process takes during the next seconds."""
    before, began = {name: ticks(pid) for name, pid in pids.items()}, time.perf_counter()
    if wait is None:
        time.sleep(seconds)
    else:
        wait(seconds * 1000)
    took = time.perf_counter() - began
    return {name: (ticks(pid) - before[name]) / TICKS / took for name, pid in pids.items()}


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
