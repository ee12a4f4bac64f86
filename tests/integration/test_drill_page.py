"""The report of a drill in a real Chromium, in light and dark: everything is there, nothing is asked of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.drill.run import Ran
from penstock.drill.verdict import Mistake, Result, page_of
from tests.support.browser import Watch, axe_findings, browsing


def report() -> Result:
    result = Result("payments", 7, rows={"alerts": 12_345}, left_behind=["Kafka topic alerts_drill-1_hard at b:9092"])
    why = "20 rows differ in at from those of a calm run over the same input: the Python function stamp"
    result.mistakes.append(Mistake("other rows", "sink alerts", why, ("('a', 1), calm: ('a', 2)", "<script>")))
    result.not_judged.append("function look calls ('db', 5432): the drill does not see what it does there")
    events = [
        {"time": 100.0 + second, "event": "started" if second % 10 == 0 else "completed", "query": "alerts", **more}
        for second in range(60)
        for more in ({"generation": second // 10, "epoch": second},)
    ]
    faults = [
        {"at": 12.5, "kind": "stop", "target": "jvm", "lasts": 3.2},
        {"at": 19.0, "kind": "kill", "target": "driver", "lasts": 0.0},
        {"at": 30.0, "kind": "step", "target": "at epoch.decided", "lasts": 0.0},
    ]
    result.drilled = Ran("stopped", begun=100.0, seconds=60.0, faults=faults, events=events)
    return result


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_shows_everything_by_itself(scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "drill.html"
    file.write_text(page_of(report()))
    with browsing() as browser:
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1100, "height": 900})  # type: ignore[arg-type]
        watch = Watch(page)
        page.goto(file.as_uri())
        page.screenshot(path=tmp_path / "drill.png", full_page=True)
        text = page.inner_text("body")
        assert "Drill of payments: Mistakes: 1." in text
        assert "3 faults in 54 epochs and 60 s. Rows compared: alerts 12,345. --seed 7" in text
        assert "('a', 1), calm: ('a', 2)\n<script>" in text
        assert "at epoch.decided" in text
        assert page.locator("svg rect").count() == 63
        assert page.locator("svg rect.stop title").text_content() == "12.50 s: jvm"
        assert axe_findings(page) == []
        page.set_viewport_size({"width": 320, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert watch.errors == []
        assert watch.elsewhere("file:") == []
