"""The page in a real Chromium over the real server, with runs in a registry and jobs without Spark: how it is opened,
and what a person sees where something is wrong."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PreCommitFailed
from penstock.ops.process.registry import Entry, Registry, State, history_folder
from tests.support.browser import Watch, axe_findings
from tests.support.fake_job import served
from tests.support.own_home import use_own_home
from tests.support.ui_client import Ui, a_story, ui
from tests.support.waiting import until

pytest.importorskip("playwright", reason="Playwright is missing: it is in the dev group of pyproject.toml")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="session", autouse=True)
def quickly() -> None:
    """Nothing is made ready for Spark, which is not started here."""


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use_own_home(tmp_path, monkeypatch)


@pytest.fixture
def server() -> Iterator[Ui]:
    with ui() as started:
        yield started


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    yield context
    context.close()


Visit = Callable[..., "Page"]


@pytest.fixture
def visit(context: BrowserContext, server: Ui) -> Iterator[Visit]:
    """A page that a link has opened, at what follows the `#`. At the end its console is empty, unless it was `loud`:
    Chromium itself writes of answers that are errors."""
    watched: list[Watch] = []

    def open_page(place: str = "", *, loud: bool = False) -> Page:
        page = context.new_page()
        watch = Watch(page)
        if not loud:
            watched.append(watch)
        page.goto(link(server))
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        page.goto(f"http://{server.address}/#{place}")
        return page

    yield open_page
    for watch in watched:
        assert watch.errors == []
        assert watch.elsewhere(f"http://{server.address}/") == []


def link(server: Ui) -> str:
    return f"http://{server.address}/#code={server.access.new_code()}"


def test_a_link_opens_once_and_a_wrong_token_nothing(server: Ui, browser: Browser, context: BrowserContext) -> None:
    once = link(server)
    page = context.new_page()
    page.goto(once)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert "code" not in page.url
    with contextlib.closing(browser.new_context()) as other:
        stranger = other.new_page()
        for place, told in (
            (f"http://{server.address}/", "The job's token is needed"),
            (once, "This link has been used, or is too old."),
            (f"http://{server.address}/#code=wrong", "This link has been used, or is too old."),
        ):
            stranger.goto(place)
            expect(stranger.get_by_role("heading", name="This page is closed to you")).to_be_visible()
            expect(stranger.get_by_role("alert")).to_contain_text(told)
    with contextlib.closing(browser.new_context(extra_http_headers={"Authorization": "Bearer wrong"})) as other:
        answer = other.new_page().goto(f"http://{server.address}/penstock/v1/runs")
        assert answer is not None
        assert answer.status == 401


def test_a_tab_stays_open_when_it_is_loaded_again_and_another_needs_a_link(server: Ui, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(link(server))
    for _ in range(2):
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        page.reload()
    assert context.cookies() == [], "a browser would send them to every port of the machine"
    other = context.new_page()
    other.goto(f"http://{server.address}/")
    expect(other.get_by_role("heading", name="This page is closed to you")).to_be_visible()


def test_a_page_whose_session_is_over_says_so_and_takes_a_new_code(visit: Visit, server: Ui) -> None:
    with served() as job:
        page = visit(f"/runs/{job.id}/overview", loud=True)
        expect(page.locator("#connection")).to_have_text("Live")
        server.access._sessions.clear()
        page.get_by_role("tab", name="Savepoints").click()
        expect(page.get_by_role("heading", name="This page is closed to you")).to_be_visible()
        page.get_by_label("Code from the link").fill(server.access.new_code())
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("heading", name="payments")).to_be_visible()  # where it was


def test_a_link_on_a_page_of_another_site(server: Ui, context: BrowserContext) -> None:
    """Whoever follows it must still come in."""
    target = link(server)

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<!doctype html><a href="{target}">a job</a>'.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = context.new_page()
        page.goto(f"http://localhost:{other.server_port}/")  # 127.0.0.1 is another site
        page.get_by_role("link", name="a job").click()
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        other.shutdown()


def test_scripts_of_another_port_read_nothing(server: Ui, context: BrowserContext) -> None:
    """The same site by the browser's reckoning: it would send a cookie along."""
    page = context.new_page()
    page.goto(link(server))
    with ui() as other:
        page.goto(link(other))
        for mode in ("cors", "no-cors"):
            told = page.evaluate(
                """async ([address, mode]) => {
                    try {
                        const options = {credentials: "include", mode};
                        const answer = await fetch(`http://${address}/penstock/v1/runs`, options);
                        return await answer.text() || "nothing";
                    } catch { return "nothing"; }
                }""",
                [server.address, mode],
            )
            assert told == "nothing"


def test_a_run_that_does_not_exist_is_said(visit: Visit) -> None:
    page = visit(f"/runs/{'0' * 32}/overview", loud=True)
    expect(page.get_by_role("alert")).to_contain_text(f"Job {'0' * 32} not found")
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_text("No job has run on this machine yet.")).to_be_visible()


def test_a_job_that_fails_while_the_page_is_open(visit: Visit) -> None:
    with served() as job:
        a_story(job.events.emit)
        page = visit(f"/runs/{job.id}/overview")
        expect(page.locator("#connection")).to_have_text("Live")
        job.failure = PreCommitFailed("The disk is full.", safe="All that was decided.", to_do="Make room.")
        job.end()
        expect(page.locator(".ended")).to_contain_text("FAILED")
        alert = page.get_by_role("alert")
        for sentence in ("The disk is full.", "All that was decided.", "Make room."):
            expect(alert).to_contain_text(sentence)
        page.get_by_role("tab", name="Exceptions").click()
        expect(page.locator("#tab-panel")).to_contain_text("The disk is full.")
        page.get_by_role("tab", name="Savepoints").click()
        expect(page.get_by_role("button", name="Take a savepoint")).to_be_disabled()


def test_a_job_whose_own_page_is_open_goes_away(browser: Browser) -> None:
    """Its server goes with it; what was seen stays, and the page says what to do."""
    with served() as job, contextlib.closing(browser.new_context()) as context:
        a_story(job.events.emit)
        page = context.new_page()
        _, answer = job.ask("POST", "/penstock/v1/codes")
        page.goto(f"http://{job.serving.address}{answer['path']}")
        page.get_by_role("link", name="payments").click()
        expect(page.locator("#connection")).to_have_text("Live")
        job.end()
        expect(page.locator(".ended").or_(page.get_by_role("alert")).first).to_be_visible()
        expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()


def test_garbage_in_the_registry_spoils_nothing_else(visit: Visit, tmp_path: Path) -> None:
    with served() as job:
        folder = tmp_path / "home" / "jobs"
        whole = {"version": 1, "name": "odd", "state": "RUNNING", "start": 1}
        bodies: list[Any] = [[], 7, {"version": 99}, {**whole, "start": "soon"}, {**whole, "name": None}]
        bodies += [{**whole, "error": ["x"]}, {**whole, "address": 7}, {**whole, "state": "ODD"}]
        for body in bodies:
            run = uuid.uuid4().hex
            text = json.dumps({**body, "id": run} if isinstance(body, dict) else body)
            (folder / f"{run}.json").write_text(text)
        (folder / f"{uuid.uuid4().hex}.json").write_bytes(b'{"version": 1, "id": "\xff')
        page = visit()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="payments").click()
        expect(page.locator("#connection")).to_have_text("Live")
        assert job.thread.is_alive()


def test_a_history_cut_in_half_is_shown_as_far_as_it_goes(visit: Visit) -> None:
    with served() as job:
        a_story(job.events.emit)
    file = history_folder(job.id) / "epochs-00000001.jsonl"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 5 // 8])
    odd = [{"time": 1, "event": "checkpoint", "query": "out", "epoch": "x"}, {"time": 2, "event": "checkpoint"}]
    odd += [{"time": 3, "event": "checkpoint", "query": "out", "total_ms": float("nan")}, {"time": 4, "event": 7}]
    with (history_folder(job.id) / "story-00000001.jsonl").open("a") as story:
        story.writelines(json.dumps(line) + "\n" for line in odd)
    page = visit(f"/runs/{job.id}/checkpoints/history")
    expect(page.locator(".opener").first).to_have_text("2")
    told = page.locator("[data-key=damage]")
    expect(told).to_contain_text("epochs-00000001.jsonl has 1 damaged lines")
    expect(told).to_contain_text("3 of its events cannot be understood")
    page.get_by_role("tab", name="Overview").first.click()
    expect(page.locator(".chart").first).to_be_visible()
    assert axe_findings(page) == []


def test_two_tabs_stop_one_job(visit: Visit) -> None:
    with served() as job:
        job.job.gate.clear()
        tabs = [visit(f"/runs/{job.id}/savepoints") for _ in range(2)]
        for page in tabs:
            page.get_by_role("button", name="Stop with a savepoint").click()
            page.get_by_role("dialog").get_by_role("button", name="Stop the job").click()
        until(lambda: len(job.job.asked) == 2, "both requests")
        job.job.gate.set()
        for page in tabs:
            expect(page.locator("#notices")).to_contain_text("Stopped. The savepoint is at /default/savepoint-")
            expect(page.locator(".ended")).to_contain_text("FINISHED")
            expect(page.get_by_role("dialog")).to_have_count(0)
        job.thread.join(60)
        assert job.entry.state is State.FINISHED


def test_ten_thousand_epochs(visit: Visit, registry: Registry) -> None:
    from tests.support.long_history import write_history

    run = uuid.uuid4().hex
    registry.put(Entry(run, "payments", State.FINISHED, start=1, end=2))
    write_history(run, 10_000)
    page = visit(f"/runs/{run}/checkpoints/history")
    expect(page.locator(".opener").first).to_have_text("10000")
    page.get_by_role("button", name="Older").click()
    expect(page.locator(".opener").first).to_have_text("9950")
    page.goto(page.url.partition("#")[0] + f"#/runs/{run}/overview")
    expect(page.locator(".chart > svg path.line").first).to_be_visible()
