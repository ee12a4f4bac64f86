"""A small token server: client credentials in, RS256 tokens of a few seconds out; and a broker that trusts it.

It refuses clients that it does not know, as an identity provider does, and can be told to be away.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from penstock.dev.kafka import HOST, free_port
from tests.support.servers.security import SecureBroker, SecurityFiles

SECRET = "s3cret-of-the-shop"
AUDIENCE, ISSUER = "kafka", "https://login.example"
_MODULE = "org.apache.kafka.common.security.oauthbearer"


class TokenServer:
    """`audience` and `issuer` go into the tokens from now on, `lifetime` is how many seconds they live; `status` other
    than 200 is the answer to everyone. `given` counts tokens."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import rsa

        self._key = rsa.generate_private_key(65537, 2048)
        self.port = free_port()
        self.reset()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, server.jwks())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer(*server.answer(self.headers.get("Authorization", ""), form))

            def _answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer((HOST, self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reset(self) -> None:
        self.audience, self.issuer, self.lifetime, self.status = AUDIENCE, ISSUER, 300.0, 200
        self.given: list[str] = []

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if self.status != 200:
            return self.status, {"error": "temporarily_unavailable"}
        if authorization != "Basic " + base64.b64encode(f"shop:{SECRET}".encode()).decode():
            return 401, {"error": "invalid_client", "error_description": f"unknown {authorization}"}
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": int(self.lifetime)}

    def token(self) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        now = time.time()
        claims = {"sub": "shop", "aud": self.audience, "iss": self.issuer, "iat": now, "exp": now + self.lifetime}
        signed = f"{_json64({'alg': 'RS256', 'typ': 'JWT', 'kid': 'one'})}.{_json64(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.given.append(f"{signed}.{_base64(signature)}")
        return self.given[-1]

    def jwks(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        n, e = (_base64(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": n, "e": e}]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class BearerBroker(SecureBroker):
    """A broker whose secure listener takes tokens alone, and ends a connection when its token has expired."""

    def __init__(self, tokens: TokenServer, security: SecurityFiles, folder: Path, heap: str) -> None:
        super().__init__(security, folder, heap)
        listener = "listener.name.sasl_ssl.oauthbearer"
        self._jwks = f"{tokens.url}/jwks"
        self.properties.pop("listener.name.sasl_ssl.plain.sasl.jaas.config")
        self.properties |= {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{listener}.sasl.jaas.config": f"{_MODULE}.OAuthBearerLoginModule required;",
            f"{listener}.sasl.server.callback.handler.class": f"{_MODULE}.OAuthBearerValidatorCallbackHandler",
            f"{listener}.connections.max.reauth.ms": "3600000",
            "sasl.oauthbearer.jwks.endpoint.url": self._jwks,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }

    def _command(self) -> list[str]:
        java, *rest = super()._command()
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._jwks}", *rest]


@contextmanager
def bearer_broker(security: SecurityFiles, folder: Path) -> Iterator[tuple[TokenServer, BearerBroker]]:
    tokens = TokenServer()
    try:
        with BearerBroker(tokens, security, folder, "512m")._begin() as broker:
            yield tokens, broker
    finally:
        tokens.close()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _json64(value: Any) -> str:
    return _base64(json.dumps(value).encode())
