"""The document names what is served, and what is served is in the document."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.routing import Mount, Route

from penstock.ops.server import web
from penstock.ops.server.app import openapi
from penstock.ops.server.ui import ui_application
from penstock.ops.server.web import Access
from tests.support.fake_job import served

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "rest.md"


def routes(found: list[object], prefix: str = "") -> set[tuple[str, str]]:
    pairs: set[tuple[str, str]] = set()
    for one in found:
        if isinstance(one, Mount):
            pairs |= routes(list(one.routes), prefix + one.path)
        elif isinstance(one, Route):
            pairs |= {(method, prefix + one.path) for method in (one.methods or ()) if method != "HEAD"}
    return pairs


def test_document_and_routes_are_the_same() -> None:
    app = ui_application(Access("token"))
    document = openapi(app.endpoints)
    written = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    inner = app.asgi()._app._app  # type: ignore[attr-defined]
    *api, page = inner.routes
    assert isinstance(page.app, web.Page)
    assert routes(api) == written
    assert document["openapi"] == "3.1.0"


def test_a_job_and_the_ui_serve_the_same_paths() -> None:
    with served() as job:
        status, document = job.ask("GET", "/penstock/v1/openapi.json")
    assert status == 200
    assert document == openapi(ui_application(Access("token")).endpoints)


def test_every_operation_is_whole() -> None:
    for path, methods in openapi(ui_application(Access("token")).endpoints)["paths"].items():
        for method, operation in methods.items():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path)), (method, path)
            assert operation["summary"]
            assert "default" in operation["responses"]


def test_the_reference_names_every_path() -> None:
    text = REFERENCE.read_text()
    for path in ui_application(Access("token")).endpoints:
        spelled = path.path.replace("{job}", "JOB").replace("{run}", "RUN").replace("{request}", "REQUEST")
        spelled = spelled.replace("{number}", "N").replace("{vertex}", "QUERY")
        assert f"`{path.method} {spelled}" in text, f"{path.method} {spelled}"


def test_schemas_come_from_types() -> None:
    paths = openapi(ui_application(Access("token")).endpoints)["paths"]
    answer = paths["/penstock/v1/runs/{run}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    query = answer["properties"]["queries"]["items"]["properties"]
    assert query["epoch"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert query["sources"] == {"type": "array", "items": {"type": "object"}}
    body = paths["/jobs/{job}/savepoints"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"] == {
        "target-directory": {"type": "string"}, "cancel-job": {"type": "boolean"}, "formatType": {"type": "string"},
        "triggerId": {"type": "string"},
    }  # fmt: skip
