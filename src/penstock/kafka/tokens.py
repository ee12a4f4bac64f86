"""Access tokens for the mechanism OAUTHBEARER: from a token endpoint, from a file, or for MSK from AWS.

The clients in Python, librdkafka's among them, get their tokens here, so that a refusal has the same name everywhere.
A process fetches one token for each identity and renews it when 80% of its life has passed; while its origin is away
the last one counts until it expires. Spark's JVM fetches its own, see `settings.for_java`.
"""

from __future__ import annotations

import base64
import functools
import json
import ssl
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from penstock import errors
from penstock.deadline import Deadline

PREFIX = "sasl.oauthbearer."
_PATIENCE = 10.0  # seconds for an endpoint that is away for a moment; no broker is asked meanwhile
_PAUSE = 0.5
_RENEWED_AT = 0.8  # of its life, as Java's client does
_OPAQUE = 60.0  # seconds after which a token that does not say when it expires is fetched again
_LATER = (408, 425, 429)  # no refusal


@dataclass(frozen=True, slots=True)
class Token:
    value: str = field(repr=False)
    expires: float  # in Unix time
    principal: str


class Tokens:
    """The tokens of one identity. Thread-safe."""

    def __init__(self, fetch: Callable[[], Token], extensions: Mapping[str, str]) -> None:
        self.extensions = dict(extensions)
        self._fetch, self._lock = fetch, threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def get(self) -> Token:
        """`AccessDenied` where the origin refuses, `SystemUnavailable` where it is away and no token is left."""
        with self._lock:
            if (last := self._token) is not None and time.time() < self._renew_at:
                return last
            self._token = None
            try:
                token = self._fetch()
            except errors.SystemUnavailable:
                if last is None or time.time() >= last.expires:
                    raise
                token = last
            self._token, now = token, time.time()
            self._renew_at = now + max(_PAUSE, _RENEWED_AT * (token.expires - now))
            return token


def tokens_of(settings: Mapping[str, Any]) -> Tokens | None:
    """Where a client with these settings, in librdkafka's names, gets its tokens; None without OAUTHBEARER."""
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))
    return _tokens(frozenset(split(settings)[0].items())) if mechanism.upper() == "OAUTHBEARER" else None


def split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is for here, without `PREFIX`, and what is for the client."""
    ours = {name: value for name, value in settings.items() if name.startswith((PREFIX, "https.ca."))}
    rest = {name: value for name, value in settings.items() if name not in ours}
    return {name.removeprefix(PREFIX): value for name, value in ours.items()}, rest


@functools.cache
def _tokens(ours: frozenset[tuple[str, str]]) -> Tokens:
    options = dict(ours)
    return Tokens(functools.partial(METHODS[method_of(options)][0], options), extensions_of(options))


def method_of(options: Mapping[str, str]) -> str:
    """How tokens are had, with all that is needed for it; `options` are without `PREFIX`."""
    method = options.get("method", "oidc").lower()
    lacking = [name for name in METHODS[method][1] if not options.get(name)] if method in METHODS else ["method"]
    if lacking:
        shown = "; ".join(f"the method {name} needs {', '.join(needs)}" for name, (_, needs) in METHODS.items())
        happened = f"OAUTHBEARER with method {method!r} lacks, or cannot use, {', '.join(PREFIX + n for n in lacking)}."
        raise errors.ConfigurationError(happened, to_do=f"set them in the options of source and sink; {shown}.")
    return method


def extensions_of(options: Mapping[str, str]) -> dict[str, str]:
    pairs = (pair.strip().partition("=") for pair in options.get("extensions", "").split(","))
    return {name: value for name, _, value in pairs if name}


def _from_endpoint(options: Mapping[str, str]) -> Token:
    url, client = options["token.endpoint.url"], options["client.id"]
    form = {"grant_type": "client_credentials", **({"scope": options["scope"]} if options.get("scope") else {})}
    login = base64.b64encode(f"{client}:{options['client.secret']}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    request = urllib.request.Request(url, urlencode(form).encode(), headers)  # noqa: S310 - the user's own address
    deadline = Deadline(_PATIENCE)
    while True:
        try:
            trust = ssl.create_default_context(cafile=options.get("https.ca.location") or None)
            with urllib.request.urlopen(request, timeout=_PATIENCE, context=trust) as answer:  # noqa: S310 - as above
                body = json.load(answer)
            return _token(str(body["access_token"]), client, float(body.get("expires_in") or _OPAQUE))
        except (OSError, ValueError, KeyError, TypeError) as error:  # not reached, refused, or no JSON with a token
            code, reason = getattr(error, "code", 500), type(error).__name__
            with suppress(Exception):  # OAuth's word for the error alone: the rest may quote the request
                reason = f"{code} {json.load(error)['error'][:100]}"  # type: ignore[arg-type]
        if code < 500 and code not in _LATER:
            to_do = f"check {PREFIX}client.id, client.secret and scope, and that the client may use this grant."
            raise _denied(f"The token endpoint {url} refused the client {client!r}: {reason}.", to_do)
        if deadline.passed():
            raise _away(f"The token endpoint {url} gave no token in {_PATIENCE:.0f} s: {reason}.", "the endpoint runs")
        time.sleep(_PAUSE)


def _from_file(options: Mapping[str, str]) -> Token:
    path = options["token.file"]
    try:
        token = _token(Path(path).read_text().strip(), path, _OPAQUE)
    except OSError as error:
        raise _away(f"The token file {path} cannot be read: {error.strerror}.", "it is on every machine") from None
    if token.expires <= time.time():
        to_do = "see that what writes the file renews it in time."
        raise errors.CredentialsExpired(f"The token in {path} has expired.", to_do=to_do)
    return token


def _from_aws(options: Mapping[str, str]) -> Token:
    with errors.MissingExtra.named("MSK IAM", "msk"):
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.exceptions import HTTPClientError
    try:
        value, expires = MSKAuthTokenProvider.generate_auth_token(options["aws.region"])
    except Exception as error:  # a dozen kinds of botocore's, and plain ones of the signer's
        happened = f"AWS gave no credentials for MSK: {type(error).__name__}."
        if isinstance(error, HTTPClientError):
            raise _away(happened, "AWS answers from here") from None
        raise _denied(happened, f"check the role, profile or keys here, and {PREFIX}aws.region.") from None
    return Token(value, expires / 1000, "aws")


METHODS: Mapping[str, tuple[Callable[[Mapping[str, str]], Token], tuple[str, ...]]] = {  # with what each needs
    "oidc": (_from_endpoint, ("token.endpoint.url", "client.id", "client.secret")),
    "file": (_from_file, ("token.file",)),
    "aws_msk_iam": (_from_aws, ("aws.region",)),
}


def _denied(happened: str, to_do: str) -> errors.AccessDenied:
    return errors.AccessDenied(happened, safe="nothing of this epoch is visible.", to_do=to_do)


def _away(happened: str, condition: str) -> errors.SystemUnavailable:
    to_do = f"check that {condition}; the job tries again by its restart strategy."
    return errors.SystemUnavailable(happened, safe="nothing of this epoch is visible.", to_do=to_do)


def _token(value: str, name: str, seconds: float) -> Token:
    """`seconds`: how long it lives where it does not say so itself."""
    claims: Mapping[str, Any] = {}
    with suppress(Exception):  # not a JSON web token
        claims = json.loads(base64.urlsafe_b64decode(value.split(".")[1] + "==="))
    return Token(value, float(claims.get("exp") or time.time() + seconds), str(claims.get("sub") or name))


def for_confluent(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` for a client of confluent-kafka, which gets its tokens here. Raises where none can be had."""
    if (tokens := tokens_of(settings)) is None:
        return dict(settings)

    def give(_: str) -> tuple[str, float, str, dict[str, str]]:
        token = tokens.get()
        return token.value, token.expires, token.principal, tokens.extensions

    tokens.get()  # its error has a name here; in there it would be one more failed login
    return {**split(settings)[1], "oauth_cb": give}


_fed: weakref.WeakSet[Any] = weakref.WeakSet()
_thread = threading.Thread()


def keep_fresh(client: Any) -> None:
    """Call `client.renew` twice a second from now on, as long as it lives."""

    def feed() -> None:
        while True:
            time.sleep(_PAUSE)
            for fed in list(_fed):
                fed.renew()

    global _thread
    _fed.add(client)
    if not _thread.is_alive():  # nor is a parent's in a forked child
        _thread = threading.Thread(target=feed, name="penstock-tokens", daemon=True)
        _thread.start()
