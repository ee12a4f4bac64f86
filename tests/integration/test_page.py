"""The page in a real Chromium, over a server with runs that never ran: what a person sees, hears and can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import Watch, axe_findings
from tests.support.page_data import ERROR, MARKUP, Run, crashed, two_queries, typical_runs
from tests.support.page_server import PageWorld, now_ms, serving
from tests.support.waiting import until

pytest.importorskip("playwright", reason="Playwright is missing: it is in the dev group of pyproject.toml")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TABS = ("Overview", "Checkpoints", "Transactions", "State", "Audit", "Exceptions", "Savepoints", "Log", "Configuration")
PARTS = ("Overview", "History", "Summary", "Configuration")
PHONE = 320

# What the tab key should reach in the panel of a tab, as the page has it from top to bottom; and what it has reached:
# whether that is in view, and its focus can be seen.
NAMED = "`${node.localName} ${node.id || node.getAttribute('aria-label') || node.textContent.trim().slice(0, 40)}`"
PANEL = "a[href], button, input, select, summary, [tabindex]"
CONTROLS = f"""() => [...document.querySelectorAll("#tab-panel, #tab-panel :is({PANEL})")]
    .filter(node => !node.disabled && node.tabIndex >= 0 && node.checkVisibility())
    .map(node => {NAMED})"""
FOCUSED = f"""() => {{
    const node = document.activeElement, box = node.getBoundingClientRect(), style = getComputedStyle(node);
    const seen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
    return [{NAMED}, seen, style.outlineStyle === "solid" || node.classList.contains("node")];
}}"""


@pytest.fixture(scope="session", autouse=True)
def quickly() -> None:
    """Nothing is made ready for Spark, which is not started here."""


class Visitor:
    """A person at the page: one tab of a browser, what it said, and the server behind it."""

    def __init__(self, page: Page, world: PageWorld, address: str) -> None:
        self.page, self.world, self.address = page, world, address
        self.watch = Watch(page)
        self.living, self.past, self.failed, self.odd, *self.more = list(world.runs.values())

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

    def begin(
        *, epochs: int = 120, locked: bool = False, quiet: bool = True, more: tuple[Run, ...] = (), **options: Any
    ) -> Visitor:
        world = PageWorld([*typical_runs(now_ms(), epochs), *more], locked=locked)
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
    expect(page.locator(".tile", has_text="Watermark")).to_have_text("Watermark–")  # not known of a run that has ended


def test_numbers_on_the_dataflow_and_what_a_node_opens_to(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living)
    source, join = page.locator(".node").nth(0), page.locator(".node", has_text="select, filter")
    expect(source.locator(".node-numbers")).to_contain_text("lag 2,362")
    expect(join.locator(".node-name")).to_have_text(["select, filter,", "left outer join"])
    expect(join.locator(".node-numbers")).to_contain_text(re.compile(r"busy \d+ %"))
    expect(page.locator(".node-sink .node-numbers").first).to_contain_text("4 writers")
    expect(page.locator(".weak-mark")).to_have_count(0)  # all links give the same
    join.click()
    expect(page.locator("[data-key=node-detail]")).to_contain_text("Project → Project → Filter → Join LeftOuter")
    source.focus()
    page.keyboard.press("Enter")
    detail = page.locator("[data-key=node-detail]")
    expect(detail).to_contain_text("Partitions of payments")
    expect(detail).to_contain_text(re.compile(r"Watermark of its rows.*, behind by \d"))
    expect(page.locator(".tile", has_text="Watermark")).to_contain_text(re.compile(r"rates behind by \d"))
    expect(source).to_have_attribute("aria-expanded", "true")
    expect(source).to_be_focused()
    page.keyboard.press("Enter")
    expect(detail).to_be_empty()
    expect(page.locator(".card", has_text="Where an epoch waits")).to_contain_text("Longest for the tasks")


def test_charts_are_chosen_and_zoomed(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living)
    charts = page.locator(".chart figcaption")
    expect(charts).to_have_count(4)
    page.locator(".picker summary").click()
    page.get_by_role("checkbox", name="Rows per second").check()
    page.get_by_role("checkbox", name="Size").uncheck()
    expect(charts.last).to_have_text("Rows per second")
    expect(charts).to_have_count(4)
    drawing = page.locator(".chart > svg").first
    expect(drawing).to_have_attribute("aria-label", re.compile("^Duration of epochs, "))
    whole = drawing.get_attribute("aria-label")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60)
    page.mouse.up()
    expect(drawing).not_to_have_attribute("aria-label", whole or "")
    visitor.button("Show the whole run").click()
    expect(drawing).to_have_attribute("aria-label", whole or "")
    page.locator(".picker select").select_option("300000")
    expect(drawing).not_to_have_attribute("aria-label", whole or "")


def test_a_chosen_query_is_a_filter_that_every_tab_obeys_and_names(visit: Visit) -> None:
    shop = two_queries(now_ms())
    visitor = visit(more=(shop,))
    page = visitor.open(shop)
    panel, scope = page.locator("#tab-panel"), page.locator(".scope")
    expect(page.get_by_label("Query")).to_have_value("")
    expect(panel.get_by_role("heading", level=2)).to_have_text(["orders", "refunds"])
    captions = panel.locator("figcaption")
    expect(captions).to_have_count(8)
    assert all(re.search(" of (orders|refunds)$", text) for text in captions.all_inner_texts())
    visitor.tab("Checkpoints")
    for part in PARTS[:3]:
        page.locator(".tabs.part").get_by_role("tab", name=part, exact=True).click()
        expect(page.locator("#part-panel").get_by_role("heading", level=2)).to_have_text(["orders", "refunds"])
    visitor.tab("Exceptions")
    expect(panel).to_contain_text("· refunds")
    expect(panel).to_contain_text("· the whole job")
    expect(panel).to_contain_text("The driver was killed by SIGKILL.")

    page.get_by_label("Query").select_option("orders")
    assert page.url.endswith("?query=orders")
    page.reload()
    for name in TABS:
        visitor.tab(name)
        expect(page.get_by_label("Query").first).to_have_value("orders")
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        expect(scope).to_contain_text(
            "every query" if name in ("Savepoints", "Log", "Configuration") else "Only query orders"
        )
        assert not re.search("refunds", panel.inner_text()), name
    visitor.tab("Checkpoints")
    for part in PARTS[:3]:
        page.locator(".tabs.part").get_by_role("tab", name=part, exact=True).click()
        expect(scope).to_contain_text("Only query orders")
        expect(page.locator("#part-panel .empty", has_text="Reading")).to_have_count(0)
        assert "refunds" not in page.locator("#part-panel").inner_text()
    assert not any("query=refunds" in url for url in visitor.watch.requests[-30:])
    visitor.button("Show all queries").click()
    expect(page.get_by_label("Query")).to_have_value("")
    expect(page.locator("#part-panel").get_by_role("heading", level=2)).to_have_text(["orders", "refunds"])
    page.go_back()
    expect(page.get_by_label("Query")).to_have_value("orders")


def test_pages_of_two_histories_are_turned_apart(visit: Visit) -> None:
    shop = two_queries(now_ms())
    page = visit(more=(shop,)).open(shop, "checkpoints/history")
    orders, refunds = (page.locator(f"[data-key=query-{uid}]") for uid in shop.queries)
    orders.get_by_role("button", name="Older").click()
    expect(orders.locator(".opener").first).to_have_text("70")
    expect(refunds.locator(".opener").first).to_have_text("120")
    page.get_by_label("Show").select_option("failed")
    expect(refunds.locator(".opener")).to_have_text(["93"])


def test_a_crashed_job_is_recovered_from_its_checkpoint(visit: Visit) -> None:
    gone = crashed(now_ms())
    visitor = visit(more=(gone,))
    page = visitor.open(gone)
    dialog, button = page.get_by_role("dialog"), visitor.button("Recover: start again from its checkpoint")
    expect(page.get_by_role("alert")).to_contain_text("start it again, which recovers it")
    button.click()
    expect(dialog).to_contain_text("No row is lost and none is written twice.")
    dialog.get_by_role("button", name="Start again").click()
    expect(page.locator("#notices")).to_contain_text("Started as run")
    (body,) = [body for method, path, body in visitor.world.asked if (method, path) == ("POST", "/penstock/v1/runs")]
    assert body == {"program": gone.program, "run": gone.id}
    expect(page.locator(".head .badge")).to_have_text("RUNNING")  # the page follows the new run
    expect(page.locator("main")).to_be_focused()

    visitor.open(gone, "savepoints")
    expect(page.locator("#tab-panel button").first).to_have_text("Recover: start again from its checkpoint")
    expect(visitor.button("Recover: start again from its checkpoint")).to_be_disabled()  # the new run is running
    visitor.button("Start from it").click()
    expect(dialog).to_contain_text(
        re.compile(r"Query alerts: 29 epochs after epoch 90, [\d,]+ rows .* are WRITTEN AGAIN")
    )
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()


def test_long_errors_take_two_lines_of_the_list(visit: Visit) -> None:
    visitor = visit()
    visitor.failed.error = {**ERROR, "happened": "line one\n" + "and much more of it " * 2000}
    page = visitor.open()
    row = page.locator("tbody tr", has_text="line one")
    box = row.bounding_box()
    assert box is not None
    assert box["height"] < 90
    row.locator("summary").click()
    opened = row.bounding_box()
    assert opened is not None
    assert 200 < opened["height"] < 600


def test_the_focus_follows_into_another_view(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open()
    page.get_by_role("link", name="payments").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Runs")).to_be_focused()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
        if reached[-1] == "tabpanel":
            break
    assert reached[-2:] == ["tab", "tabpanel"], "from the head to the tabs to what they show"
    page.keyboard.press("Tab")
    expect(page.get_by_role("region", name="Dataflow of alerts")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".node").first).to_be_focused()


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


def test_the_log_threads_and_what_it_was_started_with(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "log")
    tail = page.get_by_role("region", name="End of the log")
    expect(tail).to_contain_text("epoch 120 is complete")
    page.get_by_label("Find").fill("broker")
    expect(tail).to_have_text("12:00:02 WARNING kafka a broker does not answer")
    visitor.button("Thread dump").click()
    page.locator(".thread summary", has_text="MainThread").click()
    expect(page.get_by_text("File job.py, line 7")).to_be_visible()
    expect(page.locator("#tab-panel")).to_contain_text("JVM: 1 threads")
    visitor.tab("Configuration")
    expect(page.locator("#tab-panel")).to_contain_text("--topic payments")
    expect(page.get_by_role("region", name="Spark’s settings of this run")).to_contain_text("local[4]")
    visitor.open(visitor.past, "log")
    expect(page.locator("#tab-panel")).to_contain_text("This run has no log of its own.")


def test_the_audit_shows_each_sink_and_epoch_and_is_run_from_the_page(visit: Visit) -> None:
    shop = two_queries(now_ms())
    visitor = visit(more=(shop,))
    page = visitor.open(visitor.living, "audit")
    panel = page.locator("#tab-panel")
    sinks, findings, epochs = (panel.locator("table", has_text=name) for name in ("Sinks", "Findings", "newest first"))
    expect(panel.locator("code")).to_have_text("penstock audit payments")
    expect(sinks.locator("tbody tr", has_text="alerts → alerts")).to_contain_text("not accounted for")
    expect(sinks.locator("tbody tr", has_text="RedisSink")).to_contain_text("not provable")
    expect(findings.locator("tbody tr").first).to_contain_text("lost write")
    expect(findings).to_contain_text("a key holds its last value, whichever epoch wrote it")
    expect(findings).to_contain_text("retention: alerts-2 begins at offset 63012")
    row = epochs.locator("tbody tr", has=page.get_by_role("rowheader", name="2", exact=True))
    expect(row.get_by_role("cell")).to_have_text(["not accounted for", "21,000", "20,998", "2", "alerts → alerts"])
    expect(epochs.locator("tbody tr", has_text="totals")).to_contain_text("not told apart")
    page.get_by_label("Show").select_option("found")
    expect(epochs.get_by_role("rowheader")).to_have_text(["3", "2"])

    visitor.open(shop, "audit?query=refunds")
    expect(findings.locator("tbody tr")).to_have_count(2)
    assert "orders" not in panel.inner_text()

    visitor.open(visitor.past, "audit")
    expect(panel).to_contain_text("No audit of this run has been made yet.")
    visitor.button("Run the audit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("loaded in a process of its own, and not run")
    dialog.get_by_role("button", name="Audit", exact=True).click()
    expect(page.locator("#notices")).to_contain_text("Every row is accounted for.")
    expect(sinks.locator("tbody tr .badge")).to_have_text("accounted for")
    expect(findings).to_have_count(0)
    assert visitor.world.paths_asked("POST") == [f"/penstock/v1/runs/{visitor.past.id}/audit"]
    visitor.open(visitor.odd, "audit")
    expect(visitor.button("Run the audit")).to_be_disabled()


@pytest.mark.parametrize("name", TABS)
def test_every_control_of_a_tab_is_reached_by_keyboard_in_its_order(visit: Visit, name: str) -> None:
    visitor = visit(more=(two_queries(now_ms()),))
    page = visitor.open(visitor.living)
    visitor.tab("Overview")
    for _ in range(TABS.index(name)):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".tabs.tab [aria-selected=true]")).to_have_text(name)
    expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
    wanted = page.evaluate(CONTROLS)
    assert wanted[0] == "div tab-panel"
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert [name for name, *_ in reached] == wanted
    assert all(seen and marked for _, seen, marked in reached), reached
    for _ in wanted:
        page.keyboard.press("Shift+Tab")
    expect(page.locator(f"#tab-{name.lower()}")).to_be_focused()


def test_a_dialog_keeps_the_focus_and_gives_it_back(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open(visitor.living, "savepoints")
    opener, dialog = visitor.button("Stop with a savepoint"), page.get_by_role("dialog")
    opener.focus()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


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
def test_axe_finds_nothing(visit: Visit, scheme: str) -> None:
    visitor = visit(color_scheme=scheme, reduced_motion="reduce", more=(two_queries(now_ms()), crashed(now_ms())))
    page = visitor.open()
    expect(page.locator("tbody tr")).to_have_count(6)
    found = {}

    def look(where: str) -> None:
        if bad := axe_findings(page):
            found[where] = bad

    look("runs")
    visitor.open(visitor.failed)
    for name in TABS:
        visitor.tab(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        look(name)
    for run in visitor.more:
        visitor.open(run)
        for name in TABS:
            visitor.tab(name)
            expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
            look(f"{run.name} {name}")
    visitor.tab("Checkpoints")
    for name in PARTS:
        page.locator(".tabs.part").get_by_role("tab", name=name, exact=True).click()
        expect(page.locator("#part-panel .empty", has_text="Reading")).to_have_count(0)
        look(f"checkpoints {name}")
    visitor.open(visitor.living)
    page.locator(".node").first.click()
    look("node")
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
    size = {"width": PHONE, "height": 844}
    visitor = visit(viewport=size, has_touch=True, is_mobile=True, more=(crashed(now_ms()),))
    page = visitor.open()
    assert fits(page)
    visitor.open(visitor.living)
    for name in TABS:
        visitor.tab(name)
        expect(page.locator("#tab-panel .empty", has_text="Reading")).to_have_count(0)
        assert fits(page), name
        chosen = page.locator(".tabs.tab [aria-selected=true]").bounding_box()
        assert chosen is not None
        assert 0 <= chosen["x"] <= PHONE - 40, f"{name} is in view"
    visitor.page.goto("about:blank")
    visitor.open(visitor.living, "checkpoints/configuration")
    expect(page.locator("#part-panel table")).to_be_visible()
    chosen = page.locator(".tabs.part [aria-selected=true]").bounding_box()
    assert chosen is not None
    assert chosen["x"] + chosen["width"] <= PHONE, "also of a list that is drawn with what was read"
    visitor.tab("Overview")
    tick = page.locator(".chart .tick").first.bounding_box()
    assert tick is not None
    assert tick["height"] > 9, "letters do not shrink with the chart"
    assert len(page.screenshot(full_page=True)) > 20_000
    visitor.open(visitor.more[0])
    expect(visitor.button("Recover: start again from its checkpoint")).to_be_visible()
    assert fits(page)


def luminance(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") <= PHONE)
