"""The reference names every path that is served, and a job and `penstock ui` serve the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.ops.server.app import Application, ui_application
from penstock.ops.server.web import Access, Asgi
from tests.support.fake_job import served

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "rest.md"


def test_the_reference_names_every_path() -> None:
    text = REFERENCE.read_text()
    for path in ui_application(Access("token")).endpoints:
        spelled = path.path.replace("{job}", "JOB").replace("{run}", "RUN").replace("{request}", "REQUEST")
        spelled = spelled.replace("{number}", "N").replace("{vertex}", "QUERY")
        assert f"`{path.method} {spelled}" in text, f"{path.method} {spelled}"


def test_a_job_and_the_ui_serve_the_same_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Application] = []
    asgi = Application.asgi

    def noting(application: Application) -> Asgi:
        made.append(application)
        return asgi(application)

    monkeypatch.setattr(Application, "asgi", noting)
    with served() as job:
        assert job.ask("GET", "/penstock/v1/health")[0] == 200
    [of_job] = [{(path.method, path.path) for path in application.endpoints} for application in made]
    assert of_job == {(path.method, path.path) for path in ui_application(Access("token")).endpoints}
