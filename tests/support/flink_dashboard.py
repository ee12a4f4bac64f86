"""The files of Flink's own dashboard, from the jar that has them: fetched once, into the user's cache."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.naming import user_cache
from penstock.storage.local import only_one
from penstock.supply.jars import Coordinate, place, retrieve

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

JAR = Coordinate("org.apache.flink", "flink-runtime-web", "2.2.0")


def bring_dashboard() -> Path:
    """The folder with `index.html`. Raises `DevelopmentError` where it is not there and cannot be fetched."""
    target = user_cache() / f"flink-dashboard-{JAR.version}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.with_name(f"{target.name}.lock")):
        if not (target / "web" / "index.html").is_file():
            aside = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                retrieve([JAR], aside)
                with zipfile.ZipFile(place(aside, JAR)) as jar:
                    jar.extractall(aside / "made", [name for name in jar.namelist() if name.startswith("web/")])
                shutil.rmtree(target, ignore_errors=True)
                (aside / "made").rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return target / "web"


def serve_dashboard(page: Page, files: Path, token: str) -> None:
    """As a proxy in front of a job would: what is a file of the dashboard comes from it, all else from the job."""

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.lstrip("/") or "index.html"
        if (files / name).is_file():
            route.fulfill(path=files / name)
        else:
            route.continue_(headers={**route.request.headers, "Authorization": f"Bearer {token}"})

    page.route("**/*", answer)
