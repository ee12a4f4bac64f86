"""The guarantees of a chain's links, and of the whole chain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.errors import GuaranteeError

if TYPE_CHECKING:
    from penstock.config import Checkpoints


class Guarantee(IntEnum):
    """Ordered: a chain has the least guarantee of its links."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EFFECTIVELY_ONCE = 2  # idempotent: a replay converges, but readers may see intermediate states
    EXACTLY_ONCE = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Link:
    kind: str  # "source", "engine" or "sink"
    name: str
    guarantee: Guarantee
    because: str
    lift: str = ""  # what would raise it


@dataclass(frozen=True, slots=True)
class Chain:
    """Source → engine → sinks of one query."""

    links: tuple[Link, ...]

    @property
    def weakest(self) -> Link:
        """The first link with the least guarantee."""
        return min(self.links, key=lambda link: link.guarantee)

    @property
    def guarantee(self) -> Guarantee:
        return self.weakest.guarantee

    def require(self, wanted: Guarantee) -> None:
        if self.guarantee < wanted:
            link = self.weakest
            raise GuaranteeError(
                f"The job asks for {wanted}, but its {link.kind} {link.name!r} gives {link.guarantee}: {link.because}.",
                to_do=link.lift or f"ask for {link.guarantee}, or use another {link.kind}.",
            )

    def explain(self) -> str:
        lines = [f"{link.kind:>7}  {link.name}: {link.guarantee} ({link.because})" for link in self.links]
        weakest = self.weakest
        lines.append(f"  gives  {self.guarantee}; the weakest link is {weakest.kind} {weakest.name}")
        if weakest.lift:
            lines.append(f"   lift  {weakest.lift}")
        return "\n".join(lines)


def wanted(mode: str) -> Guarantee:
    return Guarantee[str(mode).upper()]


def format_link() -> Link:
    because = (
        "positions and state in the checkpoint, one decision per epoch, taken in Spark's Python workers. A decided"
        " epoch that Spark's log lacks is proven by a replay, not finished without computing; no savepoints of the"
        " query, no unaligned or concurrent checkpoints, no other mode"
    )
    return Link("engine", "spark", Guarantee.EXACTLY_ONCE, because)


def engine_link(checkpoints: Checkpoints, latency: float = 0.0) -> Link:
    """With `latency`, of a real-time query."""
    guarantee = wanted(str(checkpoints.mode))
    if latency:
        because = (
            f"in real time: a lane for each source partition commits its rows with their position about every"
            f" {latency * 1000:g} ms, in the source's order. Partitions, and sinks, do not become visible together"
        )
        return Link("engine", "spark", Guarantee.EXACTLY_ONCE, because)
    if guarantee is Guarantee.EXACTLY_ONCE:
        because = "positions and state in the checkpoint, one decision per epoch"
        if checkpoints.unaligned:
            because += ", rows that a slow sink has not taken wait in the in-flight log"
        elif checkpoints.max_concurrent > 1:
            because += f", up to {checkpoints.max_concurrent} epochs at a time"
        return Link("engine", "spark", guarantee, because)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        because = "mode at_least_once: rows are visible without a decision, an epoch that replays repeats them"
    else:
        because = "mode at_most_once: an epoch that has begun is never written again, and its lost rows are dropped"
    return Link("engine", "spark", guarantee, because, "set mode=exactly_once.")
