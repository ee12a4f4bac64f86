"""The weakest link."""

from __future__ import annotations

import pytest

from penstock.contracts.guarantees import Chain, Guarantee, Link
from penstock.errors import GuaranteeError

SOURCE = Link("source", "orders", Guarantee.EXACTLY_ONCE, "replayable")
ENGINE = Link("engine", "spark", Guarantee.EXACTLY_ONCE, "checkpoints")
KAFKA = Link("sink", "alerts", Guarantee.EXACTLY_ONCE, "two-phase commit")
CACHE = Link("sink", "cache", Guarantee.EFFECTIVELY_ONCE, "upsert by key", "use a sink with transactions.")
SOCKET = Link("source", "socket", Guarantee.AT_MOST_ONCE, "cannot replay")


def test_they_are_ordered_and_read_well() -> None:
    assert sorted(Guarantee) == [
        Guarantee.AT_MOST_ONCE,
        Guarantee.AT_LEAST_ONCE,
        Guarantee.EFFECTIVELY_ONCE,
        Guarantee.EXACTLY_ONCE,
    ]
    assert [str(one) for one in Guarantee] == ["at-most-once", "at-least-once", "effectively-once", "exactly-once"]


@pytest.mark.parametrize(
    ("links", "guarantee", "weakest"),
    [
        ((SOURCE, ENGINE, KAFKA), Guarantee.EXACTLY_ONCE, "orders"),
        ((SOURCE, ENGINE, KAFKA, CACHE), Guarantee.EFFECTIVELY_ONCE, "cache"),
        ((SOCKET, ENGINE, CACHE), Guarantee.AT_MOST_ONCE, "socket"),
    ],
)
def test_a_chain_gives_the_least_of_its_links(links: tuple[Link, ...], guarantee: Guarantee, weakest: str) -> None:
    chain = Chain(links)
    assert (chain.guarantee, chain.weakest.name) == (guarantee, weakest)


def test_asking_for_more_is_refused_with_the_link_and_the_cure() -> None:
    Chain((SOURCE, ENGINE, CACHE)).require(Guarantee.EFFECTIVELY_ONCE)
    with pytest.raises(GuaranteeError) as refused:
        Chain((SOURCE, ENGINE, CACHE)).require(Guarantee.EXACTLY_ONCE)
    assert str(refused.value) == (
        "The job asks for exactly-once, but its sink 'cache' gives effectively-once: upsert by key.\n"
        "Safe: nothing was started.\n"
        "To do: use a sink with transactions."
    )
    with pytest.raises(GuaranteeError, match="ask for at-most-once, or use another source"):
        Chain((SOCKET, ENGINE, KAFKA)).require(Guarantee.AT_LEAST_ONCE)


def test_explain_names_every_link_and_the_weakest() -> None:
    assert Chain((SOURCE, ENGINE, KAFKA, CACHE)).explain() == (
        " source  orders: exactly-once (replayable)\n"
        " engine  spark: exactly-once (checkpoints)\n"
        "   sink  alerts: exactly-once (two-phase commit)\n"
        "   sink  cache: effectively-once (upsert by key)\n"
        "  gives  effectively-once; the weakest link is sink cache\n"
        "   lift  use a sink with transactions."
    )
