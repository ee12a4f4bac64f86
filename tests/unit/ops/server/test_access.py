"""Who may ask what: token, one-time code, session; and what every answer carries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.server import web
from penstock.ops.server.client import Client
from penstock.ops.server.web import CODE_SECONDS, LINK_USED, SESSION_SECONDS, Access
from tests.support.fake_job import served
from tests.support.ui_client import Ui, a_story, request, ui

INDEX = b"<!doctype html><title>Penstock</title>"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ui]:
    (tmp_path / "page" / "parts").mkdir(parents=True)
    (tmp_path / "page" / "index.html").write_bytes(INDEX)
    (tmp_path / "page" / "app.js").write_text("export {};")
    (tmp_path / "page" / "parts" / "style.css").write_text("a {}")
    (tmp_path / "secret.txt").write_text("not of the page")
    monkeypatch.setattr(web, "PAGE", tmp_path / "page")
    with ui() as one:
        yield one


def buy(address: str, code: str) -> tuple[int, Any]:
    """What the page does with the code of a link."""
    status, headers, body = request(address, "POST", "/penstock/v1/sessions", {}, {"code": code})
    assert "set-cookie" not in headers, "a browser would send it to every port of the machine"
    return status, json.loads(body)


def log_in(page: Ui) -> dict[str, str]:
    """The header of a page that a code has opened."""
    status, body = buy(page.address, page.access.new_code())
    assert (status, list(body)) == (201, ["token"])
    assert body["token"] != Ui.token
    return {"Authorization": f"Bearer {body['token']}"}


def test_a_code_opens_the_page_once(page: Ui) -> None:
    code = page.access.new_code()
    assert buy(page.address, code)[0] == 201
    for used in (code, "wrong", Ui.token):
        assert buy(page.address, used) == (401, {"errors": [LINK_USED]})
    wrong: list[Any] = [{}, {"code": ""}, {"code": 7}, []]
    for nothing in wrong:
        assert request(page.address, "POST", "/penstock/v1/sessions", {}, nothing)[0] in (400, 401)


def test_codes_and_sessions_grow_old(page: Ui) -> None:
    now = [0.0]
    page.access._now = lambda: now[0]
    code, session = page.access.new_code(), log_in(page)
    assert request(page.address, "GET", "/penstock/v1/runs", session)[0] == 200
    now[0] = CODE_SECONDS + 1
    assert buy(page.address, code)[0] == 401
    now[0] = SESSION_SECONDS + 1
    assert request(page.address, "GET", "/penstock/v1/runs", session)[0] == 401


def test_the_page_itself_is_for_everybody_and_holds_nothing(page: Ui) -> None:
    kinds = {"/": "text/html", "/app.js": "text/javascript", "/parts/style.css": "text/css"}
    for path, kind in kinds.items():
        status, headers, _ = request(page.address, "GET", path)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        tag = headers["etag"]
        assert request(page.address, "GET", path, {"If-None-Match": tag})[0] == 304
    assert request(page.address, "GET", "/")[2] == INDEX
    for path in ("/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/parts", "/parts/..%2f..%2fsecret.txt"):
        assert request(page.address, "GET", path)[0] == 404


@pytest.mark.parametrize("path", ["/", "/penstock/v1/health", "/penstock/v1/runs", "/nothing"])
def test_every_answer_forbids_what_a_page_need_not_do(page: Ui, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {Ui.token}"}, {"Host": "evil.example"}):
        _, told, _ = request(page.address, "GET", path, headers)
        policy = told["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (told["x-content-type-options"], told["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "access-control-allow-origin" not in told


def test_a_session_steers_and_what_a_browser_adds_by_itself_does_not(page: Ui) -> None:
    """No cookie counts, so no other page can have a browser ask for it; and no `Origin`, however odd, is a fault."""
    session = log_in(page)
    value = session["Authorization"].partition(" ")[2]
    port = page.address.rpartition(":")[2]
    for origin in (f"http://{page.address}", "http://evil.example", "http://[", "null"):
        assert request(page.address, "POST", "/penstock/v1/codes", {**session, "Origin": origin}, {})[0] == 200
        cookie = {"Cookie": f"penstock-{port}={value}", "Origin": origin}
        assert request(page.address, "POST", "/penstock/v1/codes", cookie, {})[0] == 401
        assert request(page.address, "GET", "/penstock/v1/runs", cookie)[0] == 401


def test_a_session_of_another_server_is_worth_nothing(page: Ui) -> None:
    session = log_in(page)
    with ui() as other:
        assert request(other.address, "GET", "/penstock/v1/runs", session)[0] == 401


def test_without_the_token_nothing_but_health_answers(page: Ui) -> None:
    assert page.ask("GET", "/penstock/v1/health", token=None) == (200, {"status": "ok"})
    for token in (None, "wrong", "ü"):
        for path in page.app.endpoints:
            if path.open:
                continue
            where = path.path.replace("{job}", "0" * 32).replace("{run}", "0" * 32)
            headers = {"Authorization": f"Bearer {token}".encode().decode("latin-1")} if token else {}
            status, _, body = request(page.address, path.method, where, headers, {})
            assert (status, body.startswith(b'{"errors"')) == (401, True), path


def test_open_reads_show_no_text_of_an_error() -> None:
    with served(open_reads=True) as job:
        a_story(job.events.emit)
        run = f"/penstock/v1/runs/{job.id}"
        for path in (f"{run}/epochs", f"/jobs/{job.id}/checkpoints", run, "/penstock/v1/runs", f"{run}/series"):
            status, body = job.ask("GET", path, token=None)
            assert (status, "DE02" in str(body)) == (200, False)
        for path in (
            "exceptions",
            "restarts",
            "events",
            "transactions",
            "settings",
            "savepoints",
        ):
            assert job.ask("GET", f"{run}/{path}", token=None)[0] == 401
        assert job.ask("GET", f"/jobs/{job.id}/exceptions", token=None)[0] == 401
        assert "DE02" in str(job.ask("GET", f"{run}/epochs")[1])


def test_a_job_gives_a_code_for_its_token(page: Ui) -> None:
    with served() as job:
        client = Client(str(job.serving.address), job.entry.token)
        answer = client.ask("POST", "/penstock/v1/codes")
        assert answer["path"] == f"/#code={answer['code']}", "what is behind the # is sent to no server"
        _, body = buy(str(job.serving.address), answer["code"])
        session = {"Authorization": f"Bearer {body['token']}"}
        assert request(str(job.serving.address), "GET", "/penstock/v1/runs", session)[0] == 200


def test_codes_are_few() -> None:
    access = Access("token")
    for _ in range(1000):
        access.new_code()
    assert len(access._codes) == 100


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "two files"])
def test_by_tls_where_there_is_a_certificate(tmp_path: Path, job_certificate: Path, apart: bool) -> None:
    files: dict[str, Any] = {"certificate": str(job_certificate)}
    if apart:
        key, marker, chain = job_certificate.read_text().partition("-----BEGIN CERTIFICATE-----")
        (tmp_path / "key.pem").write_text(key)
        (tmp_path / "chain.pem").write_text(marker + chain)
        files = {"certificate": str(tmp_path / "chain.pem"), "key": str(tmp_path / "key.pem")}
    with served(None, **files) as job:
        assert str(job.serving.address).startswith("https://127.0.0.1:")
        client = Client(str(job.entry.address), job.entry.token, job.entry.certificate)
        assert client.jobs()[0]["jid"] == job.id
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            Client(str(job.entry.address), job.entry.token).jobs()
        with ui() as page:  # which goes by the certificate in the registry
            assert page.ask("GET", f"/jobs/{job.id}/checkpoints")[0] == 200
            _, body = page.ask("GET", f"/jobs/{job.id}")
            assert "CREATED" in body["timestamps"]  # only the job itself knows


def test_a_certificate_that_cannot_be_used_stops_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    for name in ("bad.pem", "missing.pem"):
        with served(certificate=str(tmp_path / name)) as job:
            assert job.serving.address is None
    assert caplog.text.count("takes no commands") == 2


def test_only_those_who_are_served(page: Ui) -> None:
    """A request that was meant for another name learns nothing, whatever it knows."""
    assert request(page.address, "GET", "/", {**log_in(page), "Host": "evil.example"})[0] == 403
