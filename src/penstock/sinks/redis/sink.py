"""`RedisSink`: rows into hashes, strings or counters by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.durations import seconds
from penstock.errors import ConfigurationError
from penstock.sinks.redis.client import public_address, require_readable
from penstock.sinks.redis.scripts import hash_tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.sinks.redis.writer import RedisTarget

_MODES = ("hash", "string", "counter")


@dataclass(frozen=True, repr=False)
class RedisSink(TwoPhaseSink):
    """Rows into Redis by key, exactly once: prepared beside the keys, applied by a script that leaves its own proof.

    The Redis key of a row is `prefix` and the value of its column `key`. By `mode`:

    * `hash`: the other columns become fields; a null removes its field, fields that the row does not have stay.
    * `string`: one other column is the value, several become one JSON object; a null removes the key.
    * `counter`: the other columns are whole numbers and are *added*: one column to a plain counter, several to the
      fields of a hash. Null adds nothing.

    `ttl` (seconds, or text such as "1h") starts anew with every write of a key.

    Rows with the same key in one partition are applied in their order; give each key one partition where the order
    of a key's rows matters.

    With `staged=False` tasks write the keys at once, for hosts that forbid scripts and for a cluster. That converges
    after a replay, but is seen on the way: effectively-once, which a job in mode exactly_once refuses. Counters cannot.

    On a `cluster` everything has to be in one slot: give a `prefix` with a hash tag, such as "{totals}:".

    With `sentinels` (`["host:26379", …]`) the host in the url is the name under which they know the primary, such as
    "redis://:secret@mymaster/0"; they are asked for it with every new connection.

    Replication is asynchronous: a failover can take what was committed, which is noticed and ends the job with
    `CommittedRowsLost`. With `replicas` an epoch counts as prepared, and as committed, only when so many replicas have
    it. Not for a cluster.

    `options` go to the client (`ssl_ca_certs`, `password`, …); they and the url's secrets are never shown.
    """

    shapes_once: ClassVar[bool] = True

    url: str
    mode: Literal["hash", "string", "counter"] = field(default="hash", kw_only=True)
    key: str = field(default="key", kw_only=True)
    prefix: str = field(default="", kw_only=True)
    ttl: float | str | None = field(default=None, kw_only=True)
    staged: bool = field(default=True, kw_only=True)
    cluster: bool = field(default=False, kw_only=True)
    sentinels: Sequence[str] = field(default=(), kw_only=True)
    replicas: int = field(default=0, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise _refused(f"RedisSink has no mode {self.mode!r}.", f"use one of {', '.join(_MODES)}.")
        require_readable(self.url)
        if self.ttl is not None and seconds(self.ttl, "ttl") < 0.001:
            raise _refused(f"ttl={self.ttl!r} is no time at all.", "give a ttl of a millisecond or more, or none.")
        if not self.staged and self.mode == "counter":
            raise _refused(
                "A counter that is written before the decision counts a replay twice, so staged=False is not for it.",
                "leave staged=True; a job in mode at_least_once writes directly anyway.",
            )
        if self.cluster and (self.sentinels or self.replicas):
            raise _refused(
                "A Redis Cluster has no sentinels, and which of its nodes' replicas to wait for is not known here.",
                "leave out cluster=True, or sentinels and replicas.",
            )
        if self.sentinels and self.url.startswith("unix:"):
            raise _refused(
                "With sentinels the address names the primary, and a path does not.",
                'write "redis://mymaster/0", with the name that the sentinels have for it.',
            )
        if self.replicas and not self.staged:
            raise _refused(
                "Only a staged sink waits for replicas: with staged=False keys are written before any decision.",
                "leave staged=True, or replicas out.",
            )
        if self.cluster and self.staged and not hash_tag(self.prefix):
            raise _refused(
                "On a cluster a script reaches one slot only, and keys without a common hash tag are spread.",
                f"give a prefix with a tag, such as {{{self.prefix.rstrip(':') or 'totals'}}}:, which puts all keys on "
                "one node; or staged=False, which writes to all nodes and gives less.",
            )

    def __repr__(self) -> str:
        return f"RedisSink({public_address(self.url)!r}, mode={self.mode!r}, key={self.key!r}, prefix={self.prefix!r})"

    def describe(self) -> str:
        kind = {"hash": "hashes", "string": "strings", "counter": "counters"}[self.mode]
        return f"Redis {kind} {self.prefix}<{self.key}> at {public_address(self.url)}"

    def link(self, uid: str) -> Link:
        if self.staged:
            because = f"rows staged in Redis, applied with their proof by one script, {self.describe()}"
            return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"{because}; as durable as this Redis is, see check")
        return Link(
            "sink",
            uid,
            Guarantee.EFFECTIVELY_ONCE,
            f"keys are overwritten before the decision: a replay converges, and is seen on the way, {self.describe()}",
            "leave staged=True, with a prefix that has a hash tag where Redis is a cluster; or set mode=at_least_once.",
        )

    def redirected(self, suffix: str) -> RedisSink:
        """The same sink under another prefix: `suffix` comes before the colon that ends it."""
        stem = self.prefix.removesuffix(":")
        return replace(self, prefix=f"{stem}{suffix}{':' if stem != self.prefix or not stem else ''}")

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.redis.rows import shape

        return shape(frame, self.mode, self.key)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.redis.check import check

        return [Finding(uid, warning) for warning in check(self._target(), staged=self.staged)]

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.redis.writer import StagingWriter

        return StagingWriter(self._target(), scope) if self.staged else self.open_direct_writer(scope)

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.redis.writer import DirectWriter

        return DirectWriter(self._target())

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.redis.committer import NothingToCommit, RedisCommitter

        return RedisCommitter(self._target(), scope) if self.staged else NothingToCommit()

    def _target(self) -> RedisTarget:
        from penstock.sinks.redis.writer import RedisTarget

        ttl = None if self.ttl is None else round(seconds(self.ttl, "ttl") * 1000)
        return RedisTarget(
            self.url,
            dict(self.options),
            self.cluster,
            self.mode,
            self.key,
            self.prefix,
            ttl,
            tuple(self.sentinels),
            self.replicas,
        )


def _refused(happened: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(happened, to_do=to_do)
