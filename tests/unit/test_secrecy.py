"""What is a secret: the settings of every system Penstock speaks to, and what stands inside a value."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from penstock.engine.restarts import ErrorClass, classify
from penstock.errors import SystemUnavailable, from_json
from penstock.events import Events
from penstock.ops.process.registry import error_fields
from penstock.secrets import (
    MASK,
    MOST_CHARACTERS,
    _spans,
    hide,
    is_secret,
    mask_setting,
    masked,
    secrets_of,
    without_secrets,
)
from penstock.spark.executors import fault_in

KAFKA = """
sasl.password sasl.jaas.config ssl.key.password ssl.key.pem ssl.certificate.pem ssl.keystore.password
ssl.keystore.key ssl.truststore.password sasl.oauthbearer.client.secret sasl.oauthbearer.config
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.assertion.private.key.passphrase
basic.auth.user.info schema.registry.basic.auth.user.info kafka.sasl.jaas.config sasl_plain_password ssl_password
spark.kafka.clusters.prod.sasl.jaas.config spark.kafka.clusters.prod.ssl.key.password
"""
S3 = """
fs.s3a.access.key fs.s3a.secret.key fs.s3a.session.token fs.s3a.server-side-encryption.key fs.s3a.encryption.key
fs.s3a.bucket.lake.secret.key AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN aws_access_key_id secret_key s3.secret-access-key
s3.session-token fs.s3a.proxy.password
"""
AZURE = """
fs.azure.account.key.shop.dfs.core.windows.net fs.azure.sas.in.shop.blob.core.windows.net
fs.azure.sas.fixed.token.shop.dfs.core.windows.net fs.azure.account.oauth2.client.secret
fs.azure.account.oauth2.client.secret.shop.dfs.core.windows.net fs.azure.account.oauth2.user.password
azure_storage_account_key AZURE_STORAGE_SAS_TOKEN azure_storage_sas_key azure_client_secret
azure_storage_connection_string adls.account-key adls.sas-token adls.connection-string SharedAccessKey AccountKey
SharedAccessSignature
"""
GOOGLE = """
fs.gs.auth.service.account.private.key google.cloud.auth.service.account.private.key fs.gs.auth.client.secret
fs.gs.encryption.key google_service_account_key gcs.oauth2.token credentials gcpAccessToken service_account_json
"""
SQL = """
password sslpassword oauth_client_secret passwd javax.jdo.option.ConnectionPassword
javax.net.ssl.keyStorePassword spark.sql.catalog.shop.password dsn spark.my.dsn ssl_key_password requirepass masterauth
"""
SPARK = """
spark.authenticate.secret spark.ssl.keyPassword spark.ssl.keyStorePassword spark.ssl.ui.trustStorePassword
spark.kubernetes.authenticate.submission.oauthToken spark.kubernetes.authenticate.driver.oauthToken
spark.executorEnv.DB_PASSWORD spark.yarn.appMasterEnv.API_KEY spark.sql.catalog.prod.credential
spark.sql.catalog.prod.token spark.x.secret spark.my.token spark.my.pw spark.app.dbPw spark.app.hmacKey
spark.app.sshKey spark.app.rsaKey
"""
SYSTEMS = {"kafka": KAFKA, "s3": S3, "azure": AZURE, "google": GOOGLE, "sql": SQL, "spark": SPARK}
SECRETS = [(system, key) for system, keys in SYSTEMS.items() for key in keys.split()]

PLAIN = """
bootstrap.servers sasl.mechanism sasl.username sasl.oauthbearer.token.endpoint.url security.protocol ssl.ca.location
ssl.key.location ssl.truststore.location ssl.keystore.type client.id group.id transactional.id key.serializer
spark.kafka.clusters.prod.sasl.token.mechanism basic.auth.credentials.source
fs.s3a.endpoint fs.s3a.aws.credentials.provider fs.s3a.server-side-encryption-algorithm fs.azure.account.auth.type
fs.azure.account.oauth2.client.id fs.azure.account.oauth2.client.endpoint
google.cloud.auth.service.account.json.keyfile hadoop.security.credential.provider.path
spark.authenticate spark.authenticate.secret.file spark.io.encryption.keySizeBits spark.master spark.executor.memory
spark.sql.shuffle.partitions spark.kubernetes.authenticate.driver.oauthTokenFile spark.security.credentials.hive.enabled
execution.checkpointing.dir state.backend.type user host port database sslmode region passfile
"""


@pytest.mark.parametrize(("system", "key"), SECRETS, ids=[key for _, key in SECRETS])
@pytest.mark.parametrize("prefix", ["", "spark.hadoop.", "kafka.", "MY_"])
def test_a_secret_is_known_by_its_name(system: str, key: str, prefix: str) -> None:
    assert mask_setting(prefix + key, "hunter2") == MASK
    assert is_secret((prefix + key).upper().replace(".", "_").replace("-", "_"))


@pytest.mark.parametrize("key", PLAIN.split())
@pytest.mark.parametrize("prefix", ["", "spark.hadoop."])
def test_what_is_none_is_shown(key: str, prefix: str) -> None:
    assert mask_setting(prefix + key, "something/else") == "something/else"


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("postgresql://app:hunter2@db:5432/shop", "postgresql://app:***@db:5432/shop"),
        ("postgresql://app:hunt/er@2@db/shop", "postgresql://app:***@db/shop"),
        ("redis://:hunter2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("a redis://u:one@h1 and s3a://key:two@bucket/x", "a redis://u:***@h1 and s3a://key:***@bucket/x"),
        ("jdbc:postgresql://db/shop?user=app&password=hunter2&ssl=true",
         "jdbc:postgresql://db/shop?user=app&password=***&ssl=true"),
        ("jdbc:sqlserver://db:1433;user=app;password=hunter2;encrypt=true",
         "jdbc:sqlserver://db:1433;user=app;password=***;encrypt=true"),
        ("jdbc:oracle:thin:app/hunter2@//db:1521/shop", "jdbc:oracle:thin:app/***@//db:1521/shop"),
        ("host=db user=app password=hunter2 dbname=shop", "host=db user=app password=*** dbname=shop"),
        ("host=db password='hunter 2' dbname=shop", "host=db password=*** dbname=shop"),
        ("https://shop.blob.core.windows.net/in?sv=1&sig=hunter2%3D", "https://shop.blob.core.windows.net/in?sv=1&sig=***"),
        ("https://s3/x?X-Amz-Signature=hunter2&X-Amz-Expires=9", "https://s3/x?X-Amz-Signature=***&X-Amz-Expires=9"),
        ("DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=hunter2==;EndpointSuffix=x",
         "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=***;EndpointSuffix=x"),
        ('PlainLoginModule required username="app" password="hunter\\"2";',
         'PlainLoginModule required username="app" password=***;'),
        ("-Xmx1g -Djavax.net.ssl.keyStorePassword=hunter2 -Da=b", "-Xmx1g -Djavax.net.ssl.keyStorePassword=*** -Da=b"),
        ('{"type": "service_account", "private_key": "hunter2\\n", "id": 7}',
         '{"type": "service_account", "private_key": ***, "id": 7}'),
        ("{'sasl.password': 'hunter2', 'client.id': 'a'}", "{'sasl.password': ***, 'client.id': 'a'}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
         "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"),
        ("redis://u:a@h?password=b;sig=c://d:e@f g", "redis://u:*** g"),
        ("Authorization: Bearer hunter2hunter2", "Authorization: *** ***"),
        ("the answer had eyJhbGciOi.eyJzdWIi.hunter2-_x in it", "the answer had *** in it"),
        ("git+https://ghp_hunter2@example.org/x", "git+https://***@example.org/x"),
        ("mysqldump --password hunter2 --user app", "mysqldump --password *** --user app"),
        ("tool --password-file /run/x --token hunter2", "tool --password-file /run/x --token ***"),
        ("ALTER ROLE app PASSWORD 'hunter 2' LOGIN", "ALTER ROLE app PASSWORD *** LOGIN"),
        ("CREATE USER app IDENTIFIED BY 'hunter2'", "CREATE USER app IDENTIFIED BY ***"),
        ("jdbc:sqlserver://db;password={hun;ter2};encrypt=true", "jdbc:sqlserver://db;password=***;encrypt=true"),
        ("password=token={hunter 2} x", "password=*** x"),
        ("password='hunter 2 and no end", "password=***"),
    ],
)  # fmt: skip
def test_a_secret_inside_a_value_is_blotted_out(value: str, seen: str) -> None:
    assert mask_setting("spark.x.setting", value) == seen
    assert masked(seen) == seen


@pytest.mark.parametrize(
    "value",
    [
        "abfss://container@account.dfs.core.windows.net/a", "postgresql://app@db/shop", "hdfs://name:8020/a:b",
        "10 min", "a=b;c=d", "local[2,4]", "/a/path:with/colons", "127.0.0.1:9092,127.0.0.1:9093", "", "C:\\x",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    ],
)  # fmt: skip
def test_other_values_stay_as_they_are(value: str) -> None:
    assert masked(value) == value


def test_secrets_of_settings_are_found_wherever_a_message_puts_them() -> None:
    settings = {
        "AWS_SECRET_ACCESS_KEY": "hush/hush",
        "uri": "postgresql://me:t0p-secret@db/x",
        "region": "eu-west",
        "pwd": "x",
    }
    assert secrets_of(settings) == {"hush/hush", "hush%2Fhush", "t0p-secret"}
    said = "eu-west refused hush/hush (also hush%2Fhush) of t0p-secret"
    assert without_secrets(said, settings) == "eu-west refused *** (also ***) of ***"


WORST = [
    "://", "://a:", "http://", "https://a", "jdbc:oracle:thin:", "jdbc:oracle:thin:a/", "password=x", "password={",
    "password=\"a", "password='\\'", "--password ", "--password", "-", "password ", "identified by ", "bearer ",
    "bearer", "eyJ", "eyJa.", "-eyJ", "-----BEGIN ", "-----BEGIN PRIVATE KEY", "a", ":", "b=", "b =", " ", "\n", "'",
    "@", "password=@://a:", "Secret", "aB",
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", WORST)
def test_a_row_that_an_error_quotes_is_read_in_one_pass(part: str) -> None:
    """A pattern that looks back and forth would need hours for these, and hold the whole driver up."""
    list(_spans(part * (500_000 // len(part))))


def test_a_long_text_is_cut_before_it_is_searched_and_no_half_of_a_secret_is_left() -> None:
    for secret in ("redis://u:hunter2hunter2@cache", "password='hunter2 hunter2'", "--token hunter2hunter2"):
        for before in range(0, len(secret) + 1, 3):
            start = "x " * ((MOST_CHARACTERS - before) // 2)
            text = masked(f"{start:{MOST_CHARACTERS - before}}{secret} and more")
            assert "hun" not in text
            assert len(text) < MOST_CHARACTERS + 50


@pytest.mark.parametrize(
    "part", ["\n", "penstock-task-error {", 'Cannot run program "', "a.", ": org.apache.spark.sql."]
)
def test_what_an_error_of_spark_s_quotes_is_classified_in_one_pass(part: str) -> None:
    text = part * (500_000 // len(part))
    assert fault_in(text) is None
    assert classify(Py4JError(text)) is ErrorClass.UNKNOWN


def test_a_long_text_without_any_stays_as_it_is() -> None:
    text = "a" * 20_000 + ":" * 1000 + " " + "b=" * 5_000
    assert masked(text) == text


LEAK = "connection to jdbc:postgresql://db/shop?user=app&password=hunter2 or s3a://key:hunter2@bucket/x failed"


def test_an_error_quotes_no_password_of_another_system_s_message() -> None:
    error = SystemUnavailable(f"It does not answer: {LEAK}.", to_do="look at it.")
    assert "hunter2" not in f"{error} {error!r} {error.args} {error.to_json()} {error.happened}"
    assert str(from_json(error.to_json())) == str(error)


def test_an_event_and_the_registry_quote_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("PENSTOCK_EVENTS", str(file))
    heard: list[str] = []
    events = Events()
    events.listen(lambda event: heard.append(str(event)))
    events.emit("failed", epoch=3, error=LEAK)
    assert json.loads(file.read_text())["epoch"] == 3
    assert "hunter2" not in f"{file.read_text()} {heard} {error_fields(RuntimeError(LEAK))}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_given_secrets_are_hidden_in_every_spelling() -> None:
    text = "hunter/2 and hunter%2F2, but not ab"
    assert hide(text, ["hunter/2", "ab", ""]) == f"{MASK} and {MASK}, but not ab"
    assert hide("secret and secretive", ["secret", "secretive"]) == f"{MASK} and {MASK}", "the longest first"
