"""Who may ask what: token, one-time code, cookie, origin; and what every answer carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server import page_files
from penstock.server.access import CODE_SECONDS, SESSION_SECONDS, Access
from penstock.server.client import Client
from tests.support.looking import Ui, a_story, request, ui
from tests.support.steered import served

INDEX = b"<!doctype html><title>Penstock</title>"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ui]:
    (tmp_path / "page" / "parts").mkdir(parents=True)
    (tmp_path / "page" / "index.html").write_bytes(INDEX)
    (tmp_path / "page" / "app.js").write_text("export {};")
    (tmp_path / "page" / "parts" / "style.css").write_text("a {}")
    (tmp_path / "secret.txt").write_text("not of the page")
    monkeypatch.setattr(page_files, "FOLDER", tmp_path / "page")
    page_files.files.cache_clear()
    with ui() as one:
        yield one
    page_files.files.cache_clear()


def log_in(page: Ui) -> dict[str, str]:
    """The header with the cookie that a code bought."""
    status, headers, _ = request(page.address, "GET", f"/open?code={page.access.new_code()}")
    assert (status, headers["location"]) == (303, "/")
    cookie, *rules = headers["set-cookie"].split("; ")
    assert {rule.lower() for rule in rules} >= {"httponly", "samesite=strict", "path=/"}
    assert Ui.token not in headers["set-cookie"]
    return {"Cookie": cookie}


def test_a_code_opens_the_page_once(page: Ui) -> None:
    code = page.access.new_code()
    assert request(page.address, "GET", f"/open?code={code}")[0] == 303
    for used in (code, "", "wrong", Ui.token):
        status, headers, _ = request(page.address, "GET", f"/open?code={used}")
        assert (status, "set-cookie" in headers) == (401, False)


def test_codes_and_cookies_grow_old(page: Ui) -> None:
    now = [0.0]
    page.access._now = lambda: now[0]
    code, cookie = page.access.new_code(), log_in(page)
    assert request(page.address, "GET", "/", cookie)[0] == 200
    now[0] = CODE_SECONDS + 1
    assert request(page.address, "GET", f"/open?code={code}")[0] == 401
    now[0] = SESSION_SECONDS + 1
    assert request(page.address, "GET", "/", cookie)[0] == 401


def test_the_page_is_for_those_who_may(page: Ui) -> None:
    for path in ("/", "/app.js", "/parts/style.css"):
        status, _, body = request(page.address, "GET", path)
        assert (status, b"penstock ui" in body) == (401, True)
    cookie = log_in(page)
    kinds = {"/": "text/html", "/app.js": "text/javascript", "/parts/style.css": "text/css"}
    for path, kind in kinds.items():
        status, headers, body = request(page.address, "GET", path, cookie)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        tag = headers["etag"]
        assert request(page.address, "GET", path, {**cookie, "If-None-Match": tag})[0] == 304
    assert request(page.address, "GET", "/", cookie)[2] == INDEX
    for path in ("/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/parts", "/parts/..%2f..%2fsecret.txt"):
        assert request(page.address, "GET", path, cookie)[0] == 404


@pytest.mark.parametrize("path", ["/", "/penstock/v1/health", "/penstock/v1/runs", "/nothing", "/open?code=x"])
def test_every_answer_forbids_what_a_page_need_not_do(page: Ui, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {Ui.token}"}, {"Host": "evil.example"}):
        _, told, _ = request(page.address, "GET", path, headers)
        policy = told["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (told["x-content-type-options"], told["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "access-control-allow-origin" not in told


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://ADDRESS", True), (None, False), ("null", False), ("http://evil.example", False),
        ("https://ADDRESS", False), ("http://127.0.0.1:1", False), ("http://localhost", False), ("", False),
    ],
)  # fmt: skip
def test_what_changes_something_must_come_from_our_own_page(page: Ui, origin: str | None, allowed: bool) -> None:
    """A page at another port of this machine is the same site, so its cookie would be sent along."""
    headers = log_in(page) | ({} if origin is None else {"Origin": origin.replace("ADDRESS", page.address)})
    for method, path in (
        ("POST", "/penstock/v1/codes"),
        ("POST", "/savepoint-disposal"),
        ("PATCH", f"/jobs/{'0' * 32}"),
    ):
        status, _, _ = request(page.address, method, path, headers, {})
        assert (status == 403) is not allowed
    assert request(page.address, "GET", "/penstock/v1/runs", headers)[0] == 200


@pytest.mark.parametrize(
    ("site", "kind", "status"),
    [
        (None, None, 200), ("same-origin", "empty", 200), ("none", "document", 200), ("same-site", "document", 200),
        ("same-site", "empty", 403), ("same-site", "script", 403), ("same-site", "iframe", 403),
        ("cross-site", "image", 403),
    ],
)  # fmt: skip
def test_what_only_reads_must_come_from_our_own_page_too(
    page: Ui, site: str | None, kind: str | None, status: int
) -> None:
    """As far as the browser says whose page asks. The token needs no page."""
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": kind} if site and kind else {}
    for path in ("/penstock/v1/runs", "/jobs/overview"):
        assert request(page.address, "GET", path, {**log_in(page), **told})[0] == status
        assert request(page.address, "GET", path, {"Authorization": f"Bearer {Ui.token}", **told})[0] == 200


def test_who_follows_a_link_of_another_site_is_led_on_by_a_page_of_ours(page: Ui) -> None:
    """A browser sends a strict cookie to no redirect that began elsewhere."""
    path = f"/open?code={page.access.new_code()}"
    status, headers, body = request(page.address, "GET", path, {"Sec-Fetch-Site": "cross-site"})
    assert (status, "set-cookie" in headers, b'content="0;url=/"' in body) == (200, True, True)
    assert b"script" not in body


def test_a_person_with_a_used_link_reads_a_sentence(page: Ui) -> None:
    _, headers, body = request(page.address, "GET", "/open?code=used", {"Accept": "text/html,*/*"})
    assert headers["content-type"].startswith("text/plain")
    assert body.startswith(b"This link has been used, or is too old.")


def test_a_cookie_of_another_server_is_worth_nothing(page: Ui) -> None:
    cookie = log_in(page)["Cookie"]
    name, _, value = cookie.partition("=")
    with ui() as other:
        other_name = f"penstock-{other.address.rpartition(':')[2]}"
        assert name != other_name
        for given in (cookie, f"{other_name}={value}", f"{other_name}="):
            assert request(other.address, "GET", "/penstock/v1/runs", {"Cookie": given})[0] == 401


def test_without_the_token_nothing_but_health_answers(page: Ui) -> None:
    assert page.ask("GET", "/penstock/v1/health", token=None) == (200, {"status": "ok"})
    for token in (None, "wrong", "ü"):
        for path in page.app.table.paths:
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
            "state/lookup?key=1",
        ):
            assert job.ask("GET", f"{run}/{path}", token=None)[0] == 401
        assert job.ask("GET", f"/jobs/{job.id}/exceptions", token=None)[0] == 401
        assert "DE02" in str(job.ask("GET", f"{run}/epochs")[1])


def test_a_job_gives_a_code_for_its_token(page: Ui) -> None:
    with served() as job:
        client = Client(str(job.serving.address), job.entry.token)
        path = client.ask("POST", "/penstock/v1/codes")["path"]
        _, headers, _ = request(str(job.serving.address), "GET", path)
        cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
        assert request(str(job.serving.address), "GET", "/", cookie)[2] == INDEX
        assert request(str(job.serving.address), "GET", "/penstock/v1/runs", cookie)[0] == 200


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
            assert page.ask("GET", f"/jobs/{job.id}/metrics")[0] == 200
            _, body = page.ask("GET", f"/jobs/{job.id}")
            assert "CREATED" in body["timestamps"]  # only the job itself knows


@pytest.fixture
def job_certificate(tmp_path: Path) -> Path:
    from penstock.dev.servers.security import make_security

    return make_security(tmp_path / "tls", {}).keystore


def test_a_certificate_that_cannot_be_used_stops_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    for name in ("bad.pem", "missing.pem"):
        with served(certificate=str(tmp_path / name)) as job:
            assert job.serving.address is None
    assert caplog.text.count("takes no commands") == 2


def test_only_those_who_are_served(page: Ui) -> None:
    """A request that was meant for another name learns nothing, whatever cookie it has."""
    assert request(page.address, "GET", "/", {**log_in(page), "Host": "evil.example"})[0] == 403
