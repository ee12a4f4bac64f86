"""A real Chromium: Debian's, found or brought, driven by Playwright, which downloads no browser of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.servers.packages import find_or_install, install_from_system

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium() -> Path:
    """The browser's program; installed by apt-get for root on Debian. `DevelopmentError` where there is none."""
    return find_or_install(
        "chromium",
        _find,
        {"apt-get": lambda: install_from_system(["chromium"], _find)},
        to_do="install Chromium (on Debian: apt install chromium), and have it on PATH.",
    )


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    program = chromium()
    # Its sandbox needs what a container's root has not; the pages are our own.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=[*sandbox, "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What a page has said to its console and asked of the network."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def elsewhere(self, address: str) -> list[str]:
        return [url for url in self.requests if not url.startswith(address)]


def axe_findings(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds in the page as it is now, however slight: rules, and where."""
    from axe_playwright_python.sync_playwright import Axe

    violations: list[Mapping[str, Any]] = Axe().run(page).response["violations"]
    return [(str(one["id"]), [str(node["html"])[:200] for node in one["nodes"]]) for one in violations]


def _find() -> Path | None:
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    return None
