"""What a Redis must be for the sink's promise to hold; asked at the start, nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigurationError
from penstock.sinks.redis import client
from penstock.sinks.redis.client import library, public_address, translate_errors

if TYPE_CHECKING:
    from penstock.sinks.redis.writer import RedisTarget

_OLDEST = (5, 0)


def check(target: RedisTarget, *, staged: bool) -> list[str]:
    """Sentences for a person; raises for what cannot work."""
    where = public_address(target.url)
    # Through the plain client in every case: it can ask one node what it is.
    alone = target.connect() if target.sentinels else client.alone(target.url, target.options)
    try:
        with translate_errors(target.url):
            info: Mapping[str, Any] = alone.info()
            if staged:
                alone.execute_command("EVAL", "return 1", 0)
        fsync = ""
        with contextlib.suppress(library().exceptions.RedisError):  # many hosts forbid CONFIG
            fsync = str(alone.config_get("appendfsync").get("appendfsync", ""))
    finally:
        alone.close()
    _must(info, target, where, staged=staged)
    return findings(info, fsync, where, ttl=target.ttl is not None, replicas=target.replicas)


def _must(info: Mapping[str, Any], target: RedisTarget, where: str, *, staged: bool) -> None:
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise ConfigurationError(f"Redis at {where} is version {version}.", to_do="use Redis 5 or newer, or Valkey.")
    is_cluster = bool(int(info.get("cluster_enabled", 0)))
    if is_cluster != target.cluster:
        raise ConfigurationError(
            f"Redis at {where} is {'' if is_cluster else 'not '}a cluster, and the sink has cluster={target.cluster}.",
            to_do=f"say RedisSink(…, cluster={is_cluster}).",
        )
    if info.get("role") == "slave" and not is_cluster:
        raise ConfigurationError(
            f"Redis at {where} is a replica, which takes no writes.", to_do="give the primary's address."
        )
    there = int(info.get("connected_slaves", 0))
    if target.replicas > there and not is_cluster:
        raise ConfigurationError(
            f"The sink waits for {target.replicas} replicas, and Redis at {where} has {there}.",
            to_do="start the replicas, or wait for fewer.",
        )
    policy = str(info.get("maxmemory_policy", ""))
    if staged and int(info.get("maxmemory", 0)) and policy.startswith("allkeys"):
        raise ConfigurationError(
            f"Redis at {where} evicts any key when memory is short (maxmemory-policy {policy}): prepared rows, or the "
            "proof that they were committed, could go.",
            to_do="use maxmemory-policy noeviction or one that begins with volatile-; or take staged=False, which "
            "gives less.",
        )


def findings(info: Mapping[str, Any], fsync: str, where: str, *, ttl: bool, replicas: int = 0) -> list[str]:
    """What works, but loses something in a case that a person should know of."""
    warnings = []
    if not int(info.get("aof_enabled", 0)):
        warnings.append(
            f"Redis at {where} has appendonly off: what it acknowledged since its last snapshot is gone when its "
            "process or machine dies, committed epochs too; turn appendonly on"
        )
    elif fsync and fsync != "always":
        warnings.append(
            f"Redis at {where} has appendfsync {fsync}: a power cut can take the last writes it acknowledged, "
            "committed epochs too; appendfsync always takes none"
        )
    if int(info.get("connected_slaves", 0)) and not replicas:
        warnings.append(
            f"Redis at {where} replicates asynchronously: a failover can take the last writes it acknowledged, "
            "committed epochs too, which ends the job with CommittedRowsLost; say replicas=1 to wait for one of them"
        )
    policy = str(info.get("maxmemory_policy", ""))
    if int(info.get("maxmemory", 0)) and (policy.startswith("allkeys") or (ttl and policy.startswith("volatile"))):
        warnings.append(f"Redis at {where} may evict written keys before their time (maxmemory-policy {policy})")
    return warnings
