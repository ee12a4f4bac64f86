"""Redis: hashes, strings and counters by key, exactly once."""

from __future__ import annotations

from penstock.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
