"""The page over a real job, in a real Chromium, from its first checkpoint to its end: what the page shows is what
happens, what it asks for is done, and what came out is there exactly once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import failpoints
from penstock.ops.process.registry import Entry, Registry
from penstock.processes import end_session
from tests.support.browser import Watch, axe_findings
from tests.support.servers.processes import end_process
from tests.support.ui_link import link_of

pytest.importorskip("playwright", reason="Playwright is missing: it is in the dev group of pyproject.toml")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from tests.support.run_job import Kafka

PATIENCE = 90_000  # milliseconds, for whatever only waits for this machine
TABS = ("Overview", "Checkpoints", "Transactions", "State", "Audit", "Exceptions", "Savepoints", "Log", "Configuration")
COMMAND = "from penstock.cli.main import main; main()"

SCRIPT = """
import os, time
from pyspark.sql.functions import udf
from pyspark.sql.types import BooleanType
from penstock import Checkpoints, DataGenSource, Job, KafkaSink, RestartStrategy

HOLD = os.environ["HOLD"]

@udf(BooleanType())
def pass_unless_held(value):
    while os.path.exists(HOLD):
        time.sleep(0.05)
    return True

job = Job("payments", checkpoints=Checkpoints(interval="500ms", storage="checkpoints", savepoint_dir="savepoints"),
          restart=RestartStrategy.fixed_delay(9, "100ms"),
          conf={"spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"})
rows = job.read(DataGenSource(rate=100, partitions=1, columns={"value": "cast(id AS string)"}), uid="payments")
rows = rows.where(pass_unless_held("value")).dropDuplicates(["value"])
job.write(rows, KafkaSink(os.environ["TOPIC"], servers=os.environ["SERVERS"]), uid="out")

if __name__ == "__main__":
    job.run()
"""


class Points:
    """Failpoints of processes that run: each acts once whenever it is asked to."""

    def __init__(self, folder: Path, **actions: str) -> None:
        self._once, self._release = folder / "once", folder / "release"
        self._once.mkdir(parents=True)
        named = {name.replace("__", "."): action for name, action in actions.items()}
        for name in named:
            (self._once / name).touch()  # as if it had acted
        text = ";".join(f"{name}={action}" for name, action in named.items())
        self.environment = {
            failpoints.VARIABLE: text,
            failpoints.ONCE: str(self._once),
            failpoints.RELEASE: str(self._release),
        }

    def act(self, *names: str) -> None:
        """At the next passing of each."""
        self._release.unlink(missing_ok=True)
        for name in names:
            (self._once / name).unlink()

    def release(self) -> None:
        """Let go on what hangs."""
        self._release.touch()


class World:
    """A folder with the job's program, and the command as the shell starts it there."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, {**os.environ, **environment}
        (folder / "job.py").write_text(SCRIPT)

    def penstock(self, verb: str, *arguments: str) -> Any:
        command = [sys.executable, "-c", COMMAND, verb, "--json", *arguments]
        result = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False, timeout=200
        )
        assert result.returncode == 0, f"{verb}: {result.stderr}\n{self.logs()}"
        return json.loads(result.stdout)

    def open_ui(self) -> subprocess.Popen[str]:
        """In another folder than the job's."""
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        command = [sys.executable, "-c", COMMAND, "ui", "--port", "0", "--json"]
        return subprocess.Popen(command, cwd=elsewhere, env=self._environment, stdout=subprocess.PIPE, text=True)

    def logs(self) -> str:
        return "".join(file.read_text()[-3000:] for file in (self.folder / "home" / "logs").glob("*.log"))


@pytest.fixture
def points(tmp_path: Path) -> Points:
    return Points(tmp_path / "points", epoch__committed="raise", recover__claimed="hang")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: Points, kafka: Kafka) -> Iterator[World]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    own = {"TOPIC": kafka.topic(1), "SERVERS": kafka.servers, "HOLD": str(tmp_path / "hold")}
    world = World(tmp_path, {**points.environment, **own})
    yield world
    points.release()
    (tmp_path / "hold").unlink(missing_ok=True)
    for entry in Registry().entries():
        if entry.supervised and entry.supervisor is not None:
            end_process(entry.supervisor, 30)


@pytest.fixture
def link(world: World) -> Iterator[str]:
    """Of `penstock ui`, which runs meanwhile."""
    with world.open_ui() as process:
        try:
            yield link_of(process)
        finally:
            process.send_signal(signal.SIGINT)


class Visitor:
    """A person at the page of a run."""

    def __init__(self, page: Page) -> None:
        self.page, self.watch = page, Watch(page)
        page.set_default_timeout(PATIENCE)

    def tab(self, name: str) -> Locator:
        self.page.locator(".tabs.tab").get_by_role("tab", name=name, exact=True).click()
        expect(self.page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        return self.page.locator("#tab-panel")

    def part(self, name: str) -> Locator:
        self.page.locator(".tabs.part").get_by_role("tab", name=name, exact=True).click()
        return self.page.locator("#part-panel")

    def do(self, button: str, yes: str, **choices: str) -> None:
        """Press a button, answer its dialog, and wait until what was asked for is done."""
        self.page.get_by_role("button", name=button, exact=True).first.click()
        dialog = self.page.get_by_role("dialog")
        for label, option in choices.items():
            dialog.get_by_label(label).select_option(option)
        dialog.get_by_role("button", name=yes, exact=True).click()
        expect(dialog).to_have_count(0)

    def newest_epoch(self) -> int:
        """On the history of checkpoints."""
        opener = self.page.locator(".opener").first
        expect(opener).to_be_visible()
        return int(opener.inner_text())

    def later_than(self, epoch: int) -> int:
        """The newest epoch in the history, once it is later than that; nothing is pressed for it."""
        self.page.wait_for_function(
            "epoch => Number(document.querySelector('.opener')?.textContent) > epoch", arg=epoch
        )
        return self.newest_epoch()


def entry_of(run: str) -> Entry:
    entry = Registry().get(run)
    assert entry is not None
    return entry


@pytest.fixture(autouse=True)
def patiently() -> Iterator[None]:
    expect.set_options(timeout=PATIENCE)
    yield
    expect.set_options(timeout=5000)


def test_a_job_s_whole_life_on_the_page(
    world: World, points: Points, link: str, browser: Browser, kafka: Kafka
) -> None:
    started = world.penstock("run", "-d", "job.py")
    visitor = Visitor(browser.new_page())
    page = visitor.page
    page.goto(link)
    page.get_by_role("link", name="payments").click()
    expect(page.locator("#connection")).to_have_text("Live")
    see_the_dataflow(visitor)
    visitor.tab("Checkpoints")
    visitor.part("History")
    first = visitor.later_than(visitor.newest_epoch())
    see_it_read(visitor, world)
    its_own_page(world, browser, first)
    job = world.penstock("show", started["id"])
    [query] = job["queries"]
    assert (job["id"], query["uid"]) == (started["id"], "out")
    assert query["epoch"] >= first

    take_a_savepoint(visitor)
    fail_and_recover(visitor, points, world.folder / "hold")
    axe_on_every_tab(visitor)

    visitor.tab("Savepoints")
    visitor.do("Stop with a savepoint", "Stop the job")
    expect(page.locator(".ended")).to_contain_text("FINISHED")
    stopped = entry_of(started["id"]).savepoint
    assert stopped is not None
    before = kafka.values(topic_of(world))
    assert before == dict.fromkeys(map(str, range(len(before))), 1)
    assert visitor.watch.errors == []

    audit(visitor)

    visitor.tab("Savepoints")
    row = page.locator("tbody tr", has_text=os.path.basename(stopped))
    row.get_by_role("button", name="Start from it").click()
    page.get_by_role("dialog").get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("link", name="Runs").click()
    page.locator("tbody tr", has_text="RUNNING").get_by_role("link", name="payments").click()
    restored = visitor.tab("Checkpoints").locator(".card", has_text="Latest Restore")
    expect(restored).to_contain_text(os.path.basename(stopped))
    visitor.part("History")
    visitor.later_than(visitor.newest_epoch())
    assert visitor.watch.errors == []
    assert visitor.watch.elsewhere(link.partition("#")[0]) == []
    die(visitor)
    after = kafka.values(topic_of(world))
    assert after == dict.fromkeys(map(str, range(len(after))), 1)
    assert len(after) > len(before)


def topic_of(world: World) -> str:
    return world._environment["TOPIC"]


def see_the_dataflow(visitor: Visitor) -> None:
    page = visitor.page
    expect(page.locator(".flow svg").first).to_have_attribute("aria-label", re.compile("source payments, .*sink out, "))
    expect(page.locator(".node-operator", has_text="remove duplicates")).to_have_count(1)
    expect(page.get_by_text("Weakest link:")).to_have_count(0)  # all links are exactly once
    see_threads(visitor)


def see_threads(visitor: Visitor) -> None:
    """Of Python and of the JVM that runs Spark; and the log that a detached run writes."""
    panel = visitor.tab("Log")
    panel.get_by_role("button", name="Thread dump").click()
    expect(panel.locator(".thread", has_text="MainThread")).to_have_count(1)
    expect(panel.locator(".thread", has_text="stream execution thread").first).to_be_visible()
    panel = visitor.tab("Configuration")
    expect(panel.get_by_role("region", name="Spark’s settings of this run")).to_contain_text("spark.master")
    visitor.tab("Overview")


def see_it_read(visitor: Visitor, world: World) -> None:
    """A partition is read slowly: the epoch is seen to read, and goes on when it does."""
    visitor.tab("Overview")
    hold = world.folder / "hold"
    hold.touch()
    expect(visitor.page.locator(".step.now")).to_have_text("Read")
    hold.unlink()
    visitor.tab("Checkpoints")
    visitor.part("History")
    visitor.later_than(visitor.newest_epoch())


def its_own_page(world: World, browser: Browser, epoch: int) -> None:
    """At the running job's own address, by a link of its own."""
    own = Visitor(browser.new_page())
    address = world.penstock("ui", "payments")["link"]
    own.page.goto(address)
    own.page.get_by_role("link", name="payments").click()
    expect(own.page.locator("#connection")).to_have_text("Live")
    own.tab("Checkpoints")
    own.part("History")
    own.later_than(epoch)
    assert own.watch.errors == []
    assert own.watch.elsewhere(address.partition("#")[0]) == []
    own.page.close()


def take_a_savepoint(visitor: Visitor) -> str:
    visitor.tab("Savepoints")
    visitor.do("Take a savepoint", "Take it", Kind="CANONICAL")
    row = visitor.page.locator("tbody tr", has_text="canonical")
    expect(row).to_have_count(1)
    expect(visitor.page.locator("#notices")).to_contain_text("The savepoint is at ")
    return row.locator("code").first.inner_text()


def fail_and_recover(visitor: Visitor, points: Points, hold: Path) -> None:
    """It fails when all is committed and nobody has written that down. Until the commit is asked for again, the ledger
    and the brokers do not agree; recovery finds out, and finishes the epoch. No later ones come meanwhile: only the
    newest are listed."""
    panel = visitor.tab("Transactions")
    expect(panel.locator("tbody tr", has_text="committed").first).to_be_visible()
    points.act("epoch.committed", "recover.claimed")
    in_doubt = panel.locator("tbody tr", has_text="in doubt")
    expect(in_doubt.first).to_be_visible()
    name = in_doubt.first.locator("code").inner_text()
    assert axe_findings(visitor.page) == []
    hold.touch()
    points.release()
    expect(in_doubt).to_have_count(0)
    expect(panel.locator("tbody tr", has_text=name).filter(has_text="committed").first).to_be_visible()
    hold.unlink()
    panel = visitor.tab("Exceptions")
    expect(panel).to_contain_text("Failpoint epoch.committed raised on purpose.")
    expect(panel).to_contain_text("a decided epoch was finished")
    expect(panel.get_by_role("region", name="Restarts, newest first").locator("tbody tr")).to_have_count(1)
    expect(visitor.page.locator(".head")).to_contain_text("1 restart")


def audit(visitor: Visitor) -> None:
    """By the command, with the job's own program, over what is in the topic."""
    panel = visitor.tab("Audit")
    visitor.do("Run the audit", "Audit")
    expect(panel.locator("dl .badge")).to_have_text("accounted for")
    expect(panel.locator("tbody tr", has_text="KafkaSink").locator(".badge")).to_have_text("accounted for")
    expect(panel.locator("table", has_text="Findings")).to_have_count(0)


def axe_on_every_tab(visitor: Visitor) -> None:
    found = {}
    for name in TABS:
        visitor.tab(name)
        if bad := axe_findings(visitor.page):
            found[name] = bad
    assert found == {}


def die(visitor: Visitor) -> None:
    """Supervisor and driver are killed; the page says so, and shows what is left."""
    run = visitor.page.url.split("/runs/")[1].partition("/")[0]
    entry = entry_of(run)
    assert entry.supervisor is not None
    assert entry.pid is not None
    os.kill(entry.supervisor, signal.SIGKILL)
    os.kill(entry.pid, signal.SIGKILL)
    end_session(entry.pid, patience=0)
    expect(visitor.page.locator(".ended")).to_contain_text("FAILED")
    expect(visitor.page.get_by_role("alert").first).to_contain_text("has ended and left no message")
    visitor.tab("Transactions")
    visitor.tab("Savepoints")
    expect(visitor.page.get_by_role("button", name="Take a savepoint")).to_be_disabled()
