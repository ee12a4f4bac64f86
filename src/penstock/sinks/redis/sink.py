"""`RedisSink`: rows into hashes, strings or counters by key; and the check of a Redis before a job starts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import seconds
from penstock.errors import ConfigurationError
from penstock.sinks.redis import client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OLDEST = (5, 0)
_MODES = ("hash", "string", "counter")


@dataclass(frozen=True, repr=False)
class RedisSink(TwoPhaseSink):
    """Rows into Redis by key, exactly once: prepared beside the keys, applied by a script that leaves its own proof.

    The Redis key of a row is `prefix` and the value of its column `key`. By `mode`:

    * `hash`: the other columns become fields; a null removes its field, fields that the row does not have stay.
    * `string`: one other column is the value, several become one JSON object; a null removes the key.
    * `counter`: the other columns are whole numbers and are *added*: one column to a plain counter, several to the
      fields of a hash. Null adds nothing.

    `ttl` (seconds, or text such as "1h") restarts with every write of a key.

    Rows with the same key in one partition are applied in order; partition by key if the order of its rows matters.

    With `staged=False` tasks write the keys directly, for hosts that forbid scripts and for a cluster. That converges
    after a replay, but readers see intermediate states: effectively-once, which a job in mode exactly_once refuses. Not
    for counters.

    On a `cluster` all keys must be in one slot: give a `prefix` with a hash tag, such as "{totals}:".

    With `sentinels` (`["host:26379", …]`) the host in the url is their name for the primary, such as
    "redis://:secret@mymaster/0"; every new connection asks them for it.

    Replication is asynchronous: a failover can lose committed rows, which is detected and ends the job with
    `CommittedRowsLost`. With `replicas` an epoch counts as prepared, and as committed, only once so many replicas have
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
            raise ConfigurationError(f"RedisSink has no mode {self.mode!r}.", to_do=f"use one of {', '.join(_MODES)}.")
        client.require_readable(self.url)
        if self.ttl is not None and seconds(self.ttl, "ttl") < 0.001:
            raise ConfigurationError(
                f"ttl={self.ttl!r} is no time at all.", to_do="give a ttl of a millisecond or more, or none."
            )
        if not self.staged and self.mode == "counter":
            raise ConfigurationError(
                "A counter that is written before the decision counts a replay twice, so staged=False is not for it.",
                to_do="leave staged=True; a job in mode at_least_once writes directly anyway.",
            )
        if self.cluster and (self.sentinels or self.replicas):
            raise ConfigurationError(
                "A Redis Cluster has no sentinels, and the sink cannot wait for the replicas of its nodes.",
                to_do="leave out cluster=True, or sentinels and replicas.",
            )
        if self.sentinels and self.url.startswith("unix:"):
            raise ConfigurationError(
                "With sentinels the address names the primary, and a path does not.",
                to_do='write "redis://mymaster/0", with the sentinels\' name for it.',
            )
        if self.replicas and not self.staged:
            raise ConfigurationError(
                "Only a staged sink waits for replicas: with staged=False keys are written before any decision.",
                to_do="leave staged=True, or replicas out.",
            )
        if self.cluster and self.staged and not client.hash_tag(self.prefix):
            raise ConfigurationError(
                "On a cluster a script reaches one slot only, and keys without a common hash tag are spread.",
                to_do=f"give a prefix with a tag, such as {{{self.prefix.rstrip(':') or 'totals'}}}:, which puts all "
                "keys on one node; or staged=False, which writes to all nodes and guarantees less.",
            )

    def __repr__(self) -> str:
        where = client.public_address(self.url)
        return f"RedisSink({where!r}, mode={self.mode!r}, key={self.key!r}, prefix={self.prefix!r})"

    def describe(self) -> str:
        kind = {"hash": "hashes", "string": "strings", "counter": "counters"}[self.mode]
        return f"Redis {kind} {self.prefix}<{self.key}> at {client.public_address(self.url)}"

    def link(self, uid: str) -> Link:
        if self.staged:
            because = f"rows staged in Redis, applied with their proof by one script, {self.describe()}"
            return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"{because}; as durable as this Redis is, see check")
        return Link(
            "sink",
            uid,
            Guarantee.EFFECTIVELY_ONCE,
            f"keys are overwritten before the decision: a replay converges, but readers see it, {self.describe()}",
            "leave staged=True, with a hash tag in the prefix if Redis is a cluster; or set mode=at_least_once.",
        )

    def redirected(self, suffix: str) -> RedisSink:
        """The same sink under another prefix: `suffix` comes before the colon that ends it."""
        stem = self.prefix.removesuffix(":")
        return replace(self, prefix=f"{stem}{suffix}{':' if stem != self.prefix or not stem else ''}")

    def shape(self, frame: DataFrame) -> DataFrame:
        from penstock.sinks.redis.writer import shape

        return shape(frame, self.mode, self.key)

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        return [Finding(uid, warning) for warning in check_server(self)]

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.redis.writer import StagingWriter

        return StagingWriter(self, scope) if self.staged else self.open_direct_writer(scope)

    def open_direct_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.redis.writer import DirectWriter

        return DirectWriter(self)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.redis.committer import NothingToCommit, RedisCommitter

        return RedisCommitter(self, scope) if self.staged else NothingToCommit()

    @property
    def ttl_milliseconds(self) -> int | None:
        return None if self.ttl is None else round(seconds(self.ttl, "ttl") * 1000)

    def connect(self) -> Any:
        return client.connect(self.url, self.options, cluster=self.cluster, sentinels=self.sentinels)


def check_server(sink: RedisSink) -> list[str]:
    """Warnings for the user; raises if the sink cannot work. Writes nothing."""
    where = client.public_address(sink.url)
    # Never through a cluster's client: a plain one can ask one node what it is.
    plain = sink.connect() if sink.sentinels else client.alone(sink.url, sink.options)
    with contextlib.closing(plain):
        with client.translate_errors(sink.url):
            info: Mapping[str, Any] = plain.info()
            if sink.staged:
                plain.execute_command("EVAL", "return 1", 0)
        fsync = ""
        with contextlib.suppress(client.library().exceptions.RedisError):  # many hosts forbid CONFIG
            fsync = str(plain.config_get("appendfsync").get("appendfsync", ""))
    _refuse(info, sink, where)
    return findings(info, fsync, where, ttl=sink.ttl is not None, replicas=sink.replicas)


def _refuse(info: Mapping[str, Any], sink: RedisSink, where: str) -> None:
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ConfigurationError(f"Redis at {where} is version {version}.", to_do="use Redis 5 or newer, or Valkey.")
    is_cluster = bool(int(info.get("cluster_enabled", 0)))
    if is_cluster != sink.cluster:
        raise ConfigurationError(
            f"Redis at {where} is {'' if is_cluster else 'not '}a cluster, and the sink has cluster={sink.cluster}.",
            to_do=f"write RedisSink(…, cluster={is_cluster}).",
        )
    if info.get("role") == "slave" and not is_cluster:
        raise ConfigurationError(
            f"Redis at {where} is a replica, which takes no writes.", to_do="give the primary's address."
        )
    replicas = int(info.get("connected_slaves", 0))
    if sink.replicas > replicas and not is_cluster:
        raise ConfigurationError(
            f"The sink waits for {sink.replicas} replicas, and Redis at {where} has {replicas}.",
            to_do="start the replicas, or wait for fewer.",
        )
    policy = str(info.get("maxmemory_policy", ""))
    if sink.staged and int(info.get("maxmemory", 0)) and policy.startswith("allkeys"):
        raise ConfigurationError(
            f"Redis at {where} evicts any key when memory is short (maxmemory-policy {policy}): prepared rows, or the "
            "proof that they were committed, could be lost.",
            to_do="use maxmemory-policy noeviction or one that begins with volatile-; or staged=False, which "
            "guarantees less.",
        )


def findings(info: Mapping[str, Any], fsync: str, where: str, *, ttl: bool, replicas: int = 0) -> list[str]:
    """Settings under which the sink works, but can lose rows."""
    warnings = []
    if not int(info.get("aof_enabled", 0)):
        warnings.append(
            f"Redis at {where} has appendonly off: writes since its last snapshot, committed epochs too, are lost when "
            "its process or machine dies; turn appendonly on"
        )
    elif fsync and fsync != "always":
        warnings.append(
            f"Redis at {where} has appendfsync {fsync}: a power cut can lose the last acknowledged writes, committed "
            "epochs too; appendfsync always loses none"
        )
    if int(info.get("connected_slaves", 0)) and not replicas:
        warnings.append(
            f"Redis at {where} replicates asynchronously: a failover can lose the last acknowledged writes, committed "
            "epochs too, which ends the job with CommittedRowsLost; set replicas=1 to wait for one of them"
        )
    policy = str(info.get("maxmemory_policy", ""))
    if int(info.get("maxmemory", 0)) and (policy.startswith("allkeys") or (ttl and policy.startswith("volatile"))):
        warnings.append(f"Redis at {where} may evict written keys before their time (maxmemory-policy {policy})")
    return warnings
