"""What a query is before it runs, what its body writes through, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.contracts.source import Source, reader_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.checkpoint.spark_log import Barrier
    from penstock.contracts.guarantees import Link
    from penstock.contracts.sink import Aside, TwoPhaseSink


class Outputs(Protocol):
    """What the body of a query writes through, in one epoch."""

    epoch: int

    def write(self, frame: DataFrame, uid: str, aside: Aside | None = None) -> None: ...


Body = Callable[["DataFrame", Outputs], None]  # with an epoch: call `outputs.write` for each sink


@dataclass(frozen=True)
class QueryPlan:
    uid: str
    frame: DataFrame
    sinks: Mapping[str, TwoPhaseSink]
    sources: Mapping[str, Source]
    positions: Sequence[str | None]  # the source of each position in a barrier, see `Lineage`
    body: Body
    output_mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)
    as_it_is: bool = False  # its body writes the frame into the one sink, and does nothing else
    latency: float = 0.0  # seconds between the commits of a lane; 0: micro-batches
    aside: Aside | None = None  # of its one sink; the sink behind it is in `sinks`, too

    @property
    def bounded(self) -> bool:
        known = self.sources
        return bool(known) and all(uid is not None and known[uid].bounded for uid in self.positions)

    @property
    def ends_with_what_is_there(self) -> bool:
        return self.bounded and any(source.ends_with_what_is_there for source in self.sources.values())

    def publish(self, job: str, barrier: Barrier) -> None:
        """Show the positions of a complete epoch to other systems, such as lag tools."""
        for uid, offset in zip(self.positions, barrier.offsets, strict=False):
            if uid is not None and offset is not None:
                self.sources[uid].publish(job, uid, offset)

    def finished_at(self, barrier: Barrier) -> bool:
        uids, offsets = self.positions, barrier.offsets
        return len(offsets) == len(uids) and all(
            uid is not None and offset is not None and self.sources[uid].finished(offset)
            for uid, offset in zip(uids, offsets, strict=True)
        )


@dataclass(frozen=True, slots=True)
class QueryProgress:
    generation: int
    completed: int  # the newest complete epoch
    decided: int  # the newest epoch whose rows may be visible


def source_links(plan: QueryPlan, plans: Iterable[QueryPlan]) -> list[Link]:
    places = [(uid, other.sources[uid]) for other in plans for uid in other.positions if uid is not None]
    links = []
    for place in plan.sources.items():
        beside = list(places)
        beside.remove(place)
        links.append(place[1].link_beside(place[0], [source for _, source in beside]))
    return links


@contextmanager
def reading(job: str, sources: Mapping[str, Source], plans: Iterable[QueryPlan]) -> Iterator[None]:
    """While this lasts, sources have running what they need beside the queries."""
    plans = list(plans)
    with ExitStack() as running:
        for uid, source in sources.items():
            places = [(plan.uid, index) for plan in plans for index, name in enumerate(plan.positions) if name == uid]
            running.callback(source.stop)
            source.start(job, uid, [reader_name(*place) for place in places])
        yield
