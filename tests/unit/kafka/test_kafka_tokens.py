"""Tokens for OAUTHBEARER: what each way needs, when one is renewed, and what Java's clients get instead."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import AccessDenied, ConfigurationError, CredentialsExpired, PenstockError, SystemUnavailable
from penstock.kafka import tokens
from penstock.kafka.settings import for_java, for_librdkafka, normalise
from penstock.kafka.tokens import Token, Tokens, extensions_of, tokens_of

OIDC = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    "sasl.oauthbearer.client.id": "shop",
    "sasl.oauthbearer.client.secret": 'hush"hush\\',
}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    tokens._tokens.cache_clear()
    yield
    tokens._tokens.cache_clear()


class Origin:
    """Gives the tokens, and raises the errors, that it was given."""

    def __init__(self, *answers: Token | PenstockError) -> None:
        self.answers = list(answers)

    def __call__(self) -> Token:
        answer = self.answers.pop(0)
        if isinstance(answer, PenstockError):
            raise answer
        return answer


def later(seconds: float, value: str = "t") -> Token:
    return Token(value, time.time() + seconds, "shop")


def jwt(**claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


@pytest.mark.parametrize(
    ("options", "lacking"),
    [
        ({"method": "oidc"}, "token.endpoint.url, sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret"),
        ({"method": "file"}, "token.file"),
        ({"method": "AWS_MSK_IAM"}, "aws.region"),
        ({"method": "kerberos"}, "method"),
    ],
)
def test_what_a_way_lacks_is_named_before_anything_is_asked(options: dict[str, str], lacking: str) -> None:
    given = {"sasl.mechanism": "oauthbearer", **{f"sasl.oauthbearer.{name}": text for name, text in options.items()}}
    with pytest.raises(ConfigurationError, match=lacking):
        tokens_of(given)
    with pytest.raises(ConfigurationError, match=lacking):
        for_java({**given, "sasl.mechanism": "OAUTHBEARER"})


def test_other_mechanisms_have_no_tokens() -> None:
    assert tokens_of({"sasl.mechanisms": "PLAIN"}) is None
    assert tokens_of({}) is None


def test_a_token_is_kept_for_most_of_its_life() -> None:
    origin = Origin(later(100), later(200))
    source = Tokens(origin, {})
    assert source.get() is source.get()
    source._renew_at = 0.0  # as time passes
    assert source.get().expires > time.time() + 150
    assert not origin.answers


def test_while_the_origin_is_away_the_last_token_counts_until_it_expires() -> None:
    away = SystemUnavailable("away")
    source = Tokens(Origin(later(100, "first"), away, later(0.0, "expired"), away), {})
    first = source.get()
    source._renew_at = 0.0
    assert source.get() is first
    source._renew_at = 0.0
    source.get()
    source._renew_at = 0.0
    with pytest.raises(SystemUnavailable):
        source.get()


def test_a_refusal_counts_at_once() -> None:
    source = Tokens(Origin(later(100), AccessDenied("refused"), later(100, "again")), {})
    source.get()
    source._renew_at = 0.0
    with pytest.raises(AccessDenied):
        source.get()
    assert source.get().value == "again"


def test_no_token_is_shown() -> None:
    assert "hush" not in repr(Token("hush", 1.0, "shop"))


def test_a_file_is_read_again_when_its_token_has_aged(tmp_path: Path) -> None:
    file = tmp_path / "token"
    source = tokens_of({**OIDC, "sasl.oauthbearer.method": "file", "sasl.oauthbearer.token.file": str(file)})
    assert source is not None
    with pytest.raises(SystemUnavailable, match="cannot be read"):
        source.get()
    file.write_text(jwt(exp=time.time() - 1))
    with pytest.raises(CredentialsExpired):
        source.get()
    file.write_text(f"{jwt(exp=time.time() + 100, sub='ann')}\n")
    assert source.get().principal == "ann"
    file.write_text("opaque")
    source._renew_at = 0.0
    assert source.get().value == "opaque"


def test_java_logs_in_with_the_same_settings() -> None:
    more = {"sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p"}
    java = for_java({**OIDC, **more, "https.ca.location": "/ca.pem"})
    assert java == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "sasl.login.callback.handler.class": f"{MODULE.rpartition('.')[0]}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="hush\\"hush\\\\" scope="kafka"'
        ' extension_logicalCluster="lkc-1" extension_pool="p";',
    }
    assert extensions_of({"extensions": "a=b"}) == {"a": "b"}


def test_java_s_own_settings_serve_the_other_clients_too() -> None:
    java = {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "kafka.sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="hush\\"hush\\\\";',
    }
    assert normalise(java) == OIDC
    plain = {name.removeprefix("kafka."): value for name, value in java.items()}
    known = for_librdkafka("h:1", plain)
    assert known["sasl.oauthbearer.client.secret"] == OIDC["sasl.oauthbearer.client.secret"]
    assert for_java(plain) == plain  # as it was given


def test_a_token_file_and_msk_have_handlers_of_their_own_in_java() -> None:
    file = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "file", "sasl.oauthbearer.token.file": "/t"}
    assert for_java(file) == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "penstock.kafka.TokenFileLogin",
        "sasl.jaas.config": f'{MODULE} required tokenFile="/t";',
    }
    msk = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "aws_msk_iam"}
    known = for_java({**msk, "sasl.oauthbearer.aws.region": "eu-west-1"})
    assert known["sasl.jaas.config"].startswith(f"{MODULE} required ")
    assert known["sasl.login.callback.handler.class"].startswith("software.amazon.msk.auth.iam.")


def test_msk_tokens_are_signed_with_the_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    for name, value in {"ACCESS_KEY_ID": "AKIDEXAMPLE", "SECRET_ACCESS_KEY": "hush", "CONFIG_FILE": "/none"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    msk = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "aws_msk_iam"}
    source = tokens_of({**msk, "sasl.oauthbearer.aws.region": "eu-west-1"})
    assert source is not None
    token = source.get()
    signed = base64.urlsafe_b64decode(token.value + "===").decode()
    assert signed.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert token.expires > time.time() + 60
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    source._token = None
    with pytest.raises(AccessDenied, match="no credentials for MSK"):
        source.get()
