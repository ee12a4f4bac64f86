"""The client of a job's control server: HTTP and the shapes of answers. It prints nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import ControlError, PenstockError, from_json
from penstock.progress import Progress, Step, silent
from penstock.secrets import masked

ERROR_HEADER = "X-Penstock-Error"
PROGRESS_HEADER = "X-Penstock-Progress"
_OURS = "/penstock/"  # these paths have no /v1 before them
_TIMEOUT_SECONDS = 30.0  # of one request; long work is polled
_SLOWEST_POLL_SECONDS = 0.5
_ENDING = 503  # from a server that ends, or from a proxy in front of one that is gone


class NoAnswer(ControlError):
    """No server listens, the connection broke, or the job ended before it could answer."""


class Client:
    """The environment's proxies are not used. `certificate`: what the server must show, if it is not trusted anyway."""

    def __init__(self, address: str, token: str | None, certificate: str | None = None) -> None:
        try:
            split = urlsplit(address if "://" in address else f"http://{address}")
            port = split.port
        except ValueError:  # a missing bracket, an invalid port
            raise _no_address(address) from None
        plain = address.isprintable() and " " not in address
        if split.scheme not in ("http", "https") or not split.hostname or port is None or not plain:
            raise _no_address(address)
        self._secure, self._host, self._port = split.scheme == "https", split.hostname, port
        self._prefix, self._token, self._certificate = split.path.rstrip("/"), token, certificate
        self.address = address

    def is_at(self, address: str | None) -> bool:
        """Whether `address` is this server, reached directly and without TLS."""
        names = {"localhost": "127.0.0.1"}
        host = f"[{self._host}]" if ":" in self._host else names.get(self._host, self._host)
        return address == f"{host}:{self._port}" and not self._secure and not self._prefix

    def jobs(self) -> list[dict[str, Any]]:
        """Flink's overview of what runs there."""
        return list(self.ask("GET", "/jobs/overview").get("jobs", []))

    def page_link(self) -> str:
        """Opens the page once, within ten minutes."""
        path = self.ask("POST", "/penstock/v1/codes")["path"]
        return f"{'' if '://' in self.address else 'http://'}{self.address}{path}"

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request, one answer. Raises the error that the server raised."""
        return self._exchange(method, path, body, silent)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None, progress: Progress) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        url = f"{self._prefix}{path if path.startswith(_OURS) else f'/v1{path}'}"
        with contextlib.closing(self._connection()) as connection:
            try:
                connection.request(method, url, json.dumps(body or {}), headers)
                response = connection.getresponse()
                text, header = response.read(), response.getheader(ERROR_HEADER)
                step = Step.of(response.getheader(PROGRESS_HEADER))
            except (OSError, http.client.HTTPException) as error:
                raise self._no_answer(f"{type(error).__name__}: {error}") from error
        if step is not None:
            progress(step)
        return self._read_answer(text, response.status, header)

    def _no_answer(self, why: str) -> NoAnswer:
        return NoAnswer(
            f"The job at {self.address} does not answer: {why}.",
            safe="nothing is known to have been done.",
            to_do="see with `penstock list` whether it runs, and where.",
        )

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS)
        trust = trusting(self._certificate)
        return http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_SECONDS, context=trust)

    def perform(
        self,
        path: str,
        body: dict[str, Any],
        poll: str,
        asked: Callable[[str], None] = lambda _: None,
        progress: Progress = silent,
        waiting: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Request long work and wait for its end. `asked` receives the request's id before the first poll, `progress`
        each step; `waiting` is called after each poll, and may end the wait by an error. The id makes it safe to repeat
        the request after a broken connection: the work is done once."""
        request = uuid.uuid4().hex
        body = {**body, "triggerId": request}
        try:
            self.ask("POST", path, body)
        except NoAnswer:
            self.ask("POST", path, body)
        asked(request)
        pause = 0.02
        while True:
            answer = self._exchange("GET", f"{poll}/{request}", None, progress)
            if answer.get("status", {}).get("id") == "COMPLETED":
                return dict(answer.get("operation") or {})
            waiting()
            time.sleep(pause)
            pause = min(_SLOWEST_POLL_SECONDS, pause * 2)

    def _read_answer(self, text: bytes, status: int, header: str | None) -> dict[str, Any]:
        if status == _ENDING or (status >= 500 and header is None and not text.startswith(b"{")):
            raise self._no_answer(f"status {status}")
        if header is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                raise _with_help(from_json(header), status)
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ControlError(f"What answers at {self.address} is not a job: status {status}.")
        if "errors" in body:
            raise _with_help(ControlError("\n".join(map(str, body["errors"]))), status)
        return body


def trusting(certificate: str | None) -> ssl.SSLContext:
    """Trusts this one certificate, under any name; without one, those that this machine trusts."""
    context = ssl.create_default_context(cafile=certificate)
    if certificate is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be a root's
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _no_address(address: str) -> ControlError:
    return ControlError(
        f"{masked(address)!r} is not the address of a job.", safe="nothing was asked.", to_do="write HOST:PORT."
    )


def _with_help(error: PenstockError, status: int) -> PenstockError:
    if status != 401:
        return error
    to_do = "set PENSTOCK_TOKEN to the job's token, which is in the registry on its own machine."
    return ControlError(error.happened, safe="nothing was done.", to_do=to_do)
