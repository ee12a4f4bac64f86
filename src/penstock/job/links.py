"""Which queries of a job feed which, through Kafka topics; derived from their sources and sinks, nothing connects.

A link is assumed where there may be one: a sink that takes its topic from a column may write any topic, and a pattern
that Python cannot read may match any. Only what cannot be read so is missed: a topic that the user reads with Spark's
own reader, or one cluster under two addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.sinks.kafka.sink import KafkaSink
from penstock.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.epoch.plan import QueryPlan

_HERE = {"localhost": "127.0.0.1"}


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """`downstream` reads what `upstream` writes. `topic` is empty where only the column of each row says which."""

    upstream: str
    downstream: str
    topic: str
    committed_only: bool = True  # whether downstream reads committed rows alone


def links(plans: Iterable[QueryPlan]) -> tuple[Link, ...]:
    """All links between different queries. One that reads its own output is always consistent with itself."""
    plans = list(plans)
    found = {
        Link(up.uid, down.uid, sink.topic or "", _committed_only(source, uid))
        for up in plans
        for sink in up.sinks.values()
        if isinstance(sink, KafkaSink)
        for down in plans
        if down.uid != up.uid
        for uid, source in down.sources.items()
        if isinstance(source, KafkaSource) and _same_cluster(sink.servers, source.servers) and _reads(source, uid, sink)
    }
    return tuple(sorted(found))


def downstream_first(queries: Sequence[str], linked: Iterable[Link]) -> tuple[str, ...] | None:
    """The queries, each before all that feed it; None where some feed each other in a circle."""
    feeds: dict[str, set[str]] = {uid: set() for uid in queries}
    for link in linked:
        feeds[link.upstream].add(link.downstream)
    order: list[str] = []
    while feeds:
        ready = [uid for uid, fed in feeds.items() if not fed]
        if not ready:
            return None
        order += ready
        feeds = {uid: fed - set(ready) for uid, fed in feeds.items() if uid not in ready}
    return tuple(order)


def circle(queries: Sequence[str], linked: Iterable[Link]) -> list[str]:
    """The queries that keep `downstream_first` from an answer: in a circle, or between two of them."""
    left, linked = set(queries), list(linked)
    while True:
        inside = {
            uid
            for uid in left
            if any(one.upstream == uid and one.downstream in left for one in linked)
            and any(one.downstream == uid and one.upstream in left for one in linked)
        }
        if inside == left:
            return sorted(left)
        left = inside


def _same_cluster(one: str, other: str) -> bool:
    return bool(_addresses(one) & _addresses(other))


def _addresses(servers: str) -> set[str]:
    found = set()
    for server in servers.lower().split(","):
        host, _, port = server.strip().rpartition("://")[2].rpartition(":")
        found.add(f"{_HERE.get(host, host)}:{port}")
    return found


def _reads(source: KafkaSource, uid: str, sink: KafkaSink) -> bool:
    options: Mapping[str, str] = source.reader_options(uid)
    if sink.topic is None or "assign" in options:
        return True
    if "subscribePattern" not in options:
        return sink.topic in {name.strip() for name in options.get("subscribe", "").split(",")}
    try:
        return re.fullmatch(options["subscribePattern"], sink.topic) is not None
    except re.error:
        return True  # Java's patterns know more than Python's


def _committed_only(source: KafkaSource, uid: str) -> bool:
    return source.reader_options(uid).get("kafka.isolation.level", "read_uncommitted") == "read_committed"
