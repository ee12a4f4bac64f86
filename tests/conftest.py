"""Fixtures that any test may ask for: a real Kafka broker, one with passwords, and topics on them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import quick_jvm as quick
from tests.support.servers.broker import Broker
from tests.support.servers.postgres import Postgres
from tests.support.servers.security import SecureBroker, SecurityFiles, make_security

# A machine that does much else is no reason to fail: time is never asserted.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# A shell without job control ignores SIGINT for what it starts in the background, and children inherit that: a test
# that interrupts a process would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LAYERS = ("unit", "contract", "integration", "faults", "matrix")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's folder is its marker, so that `-m unit` and `tests/unit` can never differ."""
    for item in items:
        layer = Path(str(item.path)).relative_to(Path(__file__).parent).parts[0]
        if layer in LAYERS:
            item.add_marker(layer)
        for core in item.iter_markers("core"):
            item.user_properties.append(("core", core.args[0]))  # into the report that `make matrix` reads


@pytest.fixture(scope="session", autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Jobs of the tests, and of processes they start, stand in a registry of their own."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(home))
        yield home


CLIENTS = ("kafka-io-", "penstock-group-")
"""How the threads of Kafka clients are called that live until they are closed."""


@pytest.fixture(autouse=True)
def no_client_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A client that outlives its test goes on connecting, and logs into the tests after it. One that is closed beside
    the test gets the moment that takes. A job that several tests share (`endless`) keeps its own; so does a drop-in
    whose query had no epoch to run (`example`): it never learns of the query's end."""
    before = set(threading.enumerate())
    yield
    if {"endless", "example"} & set(request.fixturenames):
        return
    left = [one for one in threading.enumerate() if one.name.startswith(CLIENTS) and one not in before]
    for thread in left:
        thread.join(10)
    assert not [one.name for one in left if one.is_alive()], "the test leaves a Kafka client open"


@pytest.fixture(scope="session")
def quick_jvm() -> Iterator[None]:
    """While this lasts, every Spark driver that is started starts in half the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(quick.VARIABLE, quick.PLAIN)
        yield


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the whole run; leave it running and use topics of your own."""
    with Broker.start(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def security(tmp_path_factory: pytest.TempPathFactory) -> SecurityFiles:
    """Certificates and two users for `sasl_broker`."""
    return make_security(tmp_path_factory.mktemp("security"), users={"alice": 'wonder"land\\1', "bob": "builder"})


@pytest.fixture(scope="session")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory, security: SecurityFiles) -> Iterator[SecureBroker]:
    """One broker with a SASL_SSL listener beside the plain one, for the whole run."""
    with SecureBroker.start_with(security, tmp_path_factory.mktemp("sasl-kafka"), heap="512m") as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for the whole run; leave it running and use tables of your own."""
    with Postgres.start() as started:
        yield started


@pytest.fixture
def topic(broker: Broker) -> Callable[..., str]:
    """Makes topics with names nobody else has: `topic()`, `topic(partitions=4)`, `topic(config={...})`."""

    from tests.support.kafka import create_topic

    def make(partitions: int = 1, *, prefix: str = "t", config: dict[str, str] | None = None) -> str:
        return create_topic(broker.servers, partitions, prefix=prefix, config=config)

    return make
