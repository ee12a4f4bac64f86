"""The page in a real Chromium, over a server with runs that never ran: what a person sees, hears and can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import Watch, serious_findings
from tests.support.page_data import ERROR, MARKUP, Run, typical_runs
from tests.support.page_server import PageWorld, now_ms, serving
from tests.support.waiting import until

pytest.importorskip("playwright", reason="Playwright is missing: it is in the dev group of pyproject.toml")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TABS = ("Overview", "Checkpoints", "Transactions", "State", "Exceptions", "Savepoints", "Configuration")
PARTS = ("Overview", "History", "Summary", "Configuration")
PHONE = 390


@pytest.fixture(scope="session", autouse=True)
def quickly() -> None:
    """Nothing is made ready for Spark, which is not started here."""


class Visitor:
    """A person at the page: one tab of a browser, what it said, and the server behind it."""

    def __init__(self, page: Page, world: PageWorld, address: str) -> None:
        self.page, self.world, self.address = page, world, address
        self.watch = Watch(page)
        self.living, self.past, self.failed, self.odd = list(world.runs.values())

    def open(self, run: Run | None = None, tab: str = "overview") -> Page:
        self.page.goto(self.address + (f"#/runs/{run.id}/{tab}" if run else ""))
        expect(self.page.locator("main h1").first).to_be_visible()
        return self.page

    def tab(self, name: str) -> None:
        self.page.locator(".tabs.tab").get_by_role("tab", name=name, exact=True).click()

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True).first

    def hide(self, hidden: bool) -> None:
        """As if the person looked at another tab."""
        self.page.evaluate(
            """hidden => {
                Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Lets somebody visit a server of their own; whatever happened there, the console stayed empty, and no other host
    was asked."""
    visitors: list[Visitor] = []
    contexts = []
    servers = []

    def begin(*, epochs: int = 120, locked: bool = False, quiet: bool = True, **options: Any) -> Visitor:
        world = PageWorld(typical_runs(now_ms(), epochs), locked=locked)
        server = serving(world)
        servers.append(server)
        address = server.__enter__()
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        visitor = Visitor(context.new_page(), world, address)
        visitor.page.set_default_timeout(20_000)
        if quiet:
            visitors.append(visitor)
        return visitor

    yield begin
    for context in contexts:
        context.close()
    for server in servers:
        server.__exit__(None, None, None)
    for visitor in visitors:
        assert visitor.watch.errors == []
        assert visitor.watch.elsewhere(visitor.address) == []


def test_from_the_list_into_a_run_and_through_every_tab(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_role("link", name="payments").first.click()
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()
    for name in TABS:
        visitor.tab(name)
        expect(page.locator(".tabs.tab [aria-selected=true]")).to_have_text(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        assert len(page.locator("#tab-panel").inner_text()) > 40, name
    visitor.tab("Checkpoints")
    for name in PARTS:
        page.locator(".tabs.part").get_by_role("tab", name=name, exact=True).click()
        expect(page.locator("#part-panel .empty", has_text="Reading")).to_have_count(0)
        assert len(page.locator("#part-panel").inner_text()) > 40, name


def test_the_overview_draws_the_dataflow_and_marks_the_weakest_link(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.failed)
    expect(page.locator(".node")).to_have_count(6)
    expect(page.locator(".node.weak .weak-mark")).to_have_text("weakest link")
    expect(page.locator("p.weakest")).to_contain_text("its files may be replaced while they are read")
    expect(page.locator(".flow svg")).to_have_attribute(
        "aria-label", re.compile("source rates, at-least-once, the weakest")
    )
    expect(page.get_by_role("alert")).to_contain_text(ERROR["to_do"])  # the run's error, in its three sentences


def test_an_epoch_is_opened_to_its_phases_and_alignment(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "checkpoints/history")
    expect(page.locator("tbody tr").first).to_contain_text("120")
    assert page.locator(".phases").first.get_attribute("aria-label")
    page.locator(".opener").first.click()
    opened = page.locator("tr.opened")
    expect(opened).to_contain_text("payments-2")
    expect(opened).to_contain_text("Reached the barrier")
    visitor.world.complete_epoch(visitor.living)  # what is open stays open while newer ones come
    expect(page.locator(".opener").first).to_have_text("121")
    expect(page.locator("tr.opened")).to_contain_text("Reached the barrier")
    page.locator(".opener[aria-expanded=true]").click()
    expect(page.locator("tr.opened")).to_have_count(0)


def test_ten_thousand_epochs_are_turned_page_by_page(visit: Visit) -> None:
    visitor = visit(epochs=10_000)
    page = visitor.open(visitor.living, "checkpoints/history")
    expect(page.locator("tbody tr")).to_have_count(50)
    visitor.button("Older").click()
    expect(page.locator(".opener").first).to_have_text("9950")
    visitor.button("Newer").click()
    expect(page.locator(".opener").first).to_have_text("10000")
    page.goto(visitor.address + f"#/runs/{visitor.living.id}/overview")
    expect(page.locator(".chart > svg path.line").first).to_be_visible()


def test_what_happens_is_seen_at_most_once_a_second_and_not_while_hidden(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.get_by_role("heading", name="Epoch 121")).to_be_visible()
    detail = f"/penstock/v1/runs/{visitor.living.id}"
    before = visitor.world.paths_asked("GET").count(detail)
    for _ in range(40):
        visitor.world.complete_epoch(visitor.living)
        page.wait_for_timeout(50)
    expect(page.get_by_role("heading", name="Epoch 161")).to_be_visible()
    assert 1 <= visitor.world.paths_asked("GET").count(detail) - before <= 5
    expect(page.locator(".tile", has_text="Rows in")).to_have_text(re.compile(r"Rows in\d+,\d+/s"))
    expect(page.locator(".tile", has_text="Rows out")).to_contain_text("4,181/s")

    visitor.hide(True)
    until(lambda: visitor.world.streams == 0, "the stream to be closed")
    page.wait_for_timeout(1200)  # what was under way ends
    asked = len(visitor.world.asked)
    for _ in range(10):
        visitor.world.complete_epoch(visitor.living)
        page.wait_for_timeout(150)
    assert len(visitor.world.asked) == asked
    visitor.hide(False)
    expect(page.get_by_role("heading", name="Epoch 171")).to_be_visible()
    assert visitor.world.streams == 1


def test_nothing_is_stopped_before_the_dialog_was_answered(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "savepoints")
    visitor.button("Stop with a savepoint").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("the job ENDS")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert not visitor.world.paths_asked("POST")

    visitor.button("Stop with a savepoint").click()
    dialog.get_by_label("Folder").fill("/elsewhere")
    dialog.get_by_role("button", name="Stop the job").click()
    expect(page.locator("#notices")).to_contain_text("/savepoints/savepoint-payments-made")
    expect(page.locator(".ended")).to_contain_text("FINISHED")
    expect(visitor.button("Take a savepoint")).to_be_disabled()
    (asked,) = [body for method, path, body in visitor.world.asked if path.endswith("/stop")]
    assert asked["targetDirectory"] == "/elsewhere"
    assert asked["drain"] is False
    assert re.fullmatch("[0-9a-f]{32}", asked["triggerId"])


def test_savepoints_are_taken_started_from_forked_and_disposed_of(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "savepoints")
    dialog = page.get_by_role("dialog")
    visitor.button("Take a savepoint").click()
    dialog.get_by_role("button", name="Take it").click()
    row = page.locator("tbody tr", has_text="savepoint-payments-made")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Start from it").click()
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(dialog).to_have_count(0)
    row.get_by_role("button", name="Fork").click()
    dialog.get_by_role("button", name="Fork").click()
    expect(dialog).to_have_count(0)
    row.get_by_role("button", name="Dispose").click()
    expect(dialog).to_contain_text("All files of /savepoints/savepoint-payments-made are DELETED.")
    dialog.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)
    started = [body for method, path, body in visitor.world.asked if (method, path) == ("POST", "/penstock/v1/runs")]
    assert [(body["from"], body["fork"]) for body in started] == [
        ("/savepoints/savepoint-payments-made", None),
        ("/savepoints/savepoint-payments-made", "payments-fork"),
    ]


def test_a_refusal_is_shown_in_its_three_sentences(visit: Visit) -> None:
    visitor = visit(quiet=False)  # Chromium itself writes of the 409
    visitor.world.refusal = ERROR
    page = visitor.open(visitor.living, "savepoints")
    visitor.button("Cancel the job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    for sentence in (ERROR["happened"], ERROR["safe"], ERROR["to_do"]):
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(sentence)
    assert visitor.living.state == "RUNNING"


def test_a_transaction_can_only_end_as_the_ledger_says(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.failed, "transactions")
    decided, undecided = visitor.failed.transactions[1]["id"], visitor.failed.transactions[2]["id"]
    expect(page.locator("p.weakest").last).to_contain_text("Readers with read_committed are held back by 1")
    for name in ("Commit", "Abort", "Resolve"):
        expect(visitor.button(name)).to_be_disabled()
    page.get_by_label(decided).check()
    expect(visitor.button("Abort")).to_be_disabled()
    expect(visitor.button("Resolve")).to_be_disabled()
    visitor.button("Commit").click()
    expect(page.get_by_role("dialog")).to_contain_text(decided)
    page.get_by_role("dialog").get_by_role("button", name="Commit").click()
    expect(page.get_by_label(decided)).to_have_count(0)
    page.get_by_label(undecided).check()
    expect(visitor.button("Commit")).to_be_disabled()
    visitor.button("Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(page.get_by_label(undecided)).to_have_count(0)
    in_doubt = visitor.failed.transactions[0]["id"]
    page.get_by_label(in_doubt).check()
    visitor.button("Resolve").click()
    page.get_by_role("dialog").get_by_label("They were").select_option("committed")
    page.get_by_role("dialog").get_by_role("button", name="Keep this word").click()
    expect(page.get_by_text("No sink has a transaction open")).to_be_visible()
    asked = [(path.rsplit("/", 1)[1], body) for method, path, body in visitor.world.asked if method == "POST"]
    assert asked == [
        ("commit", {"ids": [decided]}),
        ("abort", {"ids": [undecided]}),
        ("resolve", {"ids": [in_doubt], "as": "committed"}),
    ]


def test_a_key_is_looked_up_in_the_state(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "state")
    page.get_by_label("Key").fill('{"account": "acc-0042"}')
    visitor.button("Look up").click()
    expect(page.get_by_text("<i>1200.50</i>")).to_be_visible()


def test_tabs_are_walked_by_keyboard(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living)
    expect(page.locator("#tab-overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.locator("#tab-overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-checkpoints")).to_be_focused()
    expect(page.locator("#tab-checkpoints")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#part-panel")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#tab-configuration")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-overview")).to_be_focused()
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the focus is can be seen"
    page.go_back()
    expect(page.locator("#tab-configuration")).to_have_attribute("aria-selected", "true")


def test_a_job_that_ends_while_the_page_is_open(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living)
    expect(page.locator("#connection")).to_have_text("Live")
    visitor.world.end(visitor.living, "FAILED", ERROR)
    expect(page.locator(".ended")).to_contain_text("FAILED")
    expect(page.get_by_role("alert")).to_contain_text(ERROR["safe"])
    until(lambda: visitor.world.streams == 0, "the stream to be closed")


def test_a_server_that_goes_away_is_said_and_what_was_seen_stays(visit: Visit) -> None:
    visitor = visit(quiet=False)  # Chromium itself writes of the refused connection
    page = visitor.open(visitor.living)
    expect(page.locator("#connection")).to_have_text("Live")
    page.context.set_offline(True)
    page.evaluate("window.dispatchEvent(new Event('offline'))")
    visitor.hide(True)
    visitor.hide(False)
    expect(page.locator("#connection")).to_contain_text("trying again")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()
    page.context.set_offline(False)
    expect(page.locator("#connection")).to_have_text("Live", timeout=40_000)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_without_the_right_token_the_page_says_how_to_open_it(visit: Visit) -> None:
    visitor = visit(locked=True, quiet=False)  # Chromium itself writes of the 401
    page = visitor.open()
    expect(page.get_by_role("alert")).to_contain_text("The token is wrong")
    expect(page.locator("main")).to_contain_text("penstock ui")
    expect(page.get_by_label("Code from the link")).to_be_visible()
    visitor.open(visitor.living)
    expect(page.get_by_role("alert")).to_contain_text("The token is wrong")
    expect(page.locator("[role=tab]")).to_have_count(0)


def test_a_run_that_does_not_exist_is_said(visit: Visit) -> None:
    visitor = visit(quiet=False)  # Chromium itself writes of the 404
    visitor.page.goto(visitor.address + "#/runs/nobody/overview")
    expect(visitor.page.get_by_role("alert")).to_contain_text("Run nobody is not known here")
    visitor.page.get_by_role("link", name="Runs").click()
    expect(visitor.page.locator("tbody tr")).to_have_count(4)


def test_markup_in_names_is_shown_as_text(visit: Visit) -> None:
    visitor = visit()
    visitor.odd.savepoints = [{"path": MARKUP, "kind": MARKUP, "time": 0, "bytes": None, "drained": False}]
    visitor.odd.exceptions = [{"time": 0, "query": MARKUP, **dict.fromkeys(ERROR, MARKUP)}]
    visitor.odd.queries = (MARKUP,)
    page = visitor.open()
    page.get_by_role("link", name=MARKUP).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    for name in TABS:
        visitor.tab(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        assert page.locator("main img, main b").count() == 0
    assert page.title() == f"{MARKUP} · Penstock"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Visit, scheme: str) -> None:
    visitor = visit(color_scheme=scheme, reduced_motion="reduce")
    page = visitor.open()
    expect(page.locator("tbody tr")).to_have_count(4)
    found = {}

    def look(where: str) -> None:
        if bad := serious_findings(page):
            found[where] = bad

    look("runs")
    visitor.open(visitor.failed)
    for name in TABS:
        visitor.tab(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        look(name)
    visitor.open(visitor.living, "checkpoints/history")
    page.locator(".opener").first.click()
    expect(page.locator("tr.opened")).to_contain_text("Reached the barrier")
    look("history")
    visitor.tab("Savepoints")
    visitor.button("Stop with a savepoint").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    look("dialog")
    assert found == {}


def test_dark_and_the_switch(visit: Visit) -> None:
    visitor = visit(color_scheme="dark")
    page = visitor.open(visitor.living)
    expect(page.locator(".chart").first).to_be_visible()
    assert luminance(page) < 0.2
    assert len(page.screenshot(full_page=True)) > 30_000
    page.get_by_label("Theme").select_option("light")
    assert luminance(page) > 0.8
    page.reload()
    expect(page.locator(".chart").first).to_be_visible()
    assert luminance(page) > 0.8, "the choice is remembered"


def test_a_phone_shows_all_of_it_without_scrolling_aside(visit: Visit) -> None:
    visitor = visit(viewport={"width": PHONE, "height": 844}, has_touch=True, is_mobile=True)
    page = visitor.open()
    assert fits(page)
    visitor.open(visitor.living)
    for name in TABS:
        visitor.tab(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        assert fits(page), name
    visitor.tab("Overview")
    expect(page.locator(".chart").first).to_be_visible()
    assert len(page.screenshot(full_page=True)) > 20_000


def luminance(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") <= PHONE)
