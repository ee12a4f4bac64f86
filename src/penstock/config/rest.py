"""Where a running job can be reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rest:
    """`port` 0 is a free one. `address` is what others are told, where it is not `bind_address`; `hosts` are more names
    that requests may be meant for. `open_reads`: on this machine, reading needs no token."""

    bind_address: str = "127.0.0.1"
    address: str | None = None
    port: int = 0
    enabled: bool = True
    hosts: tuple[str, ...] | None = None
    open_reads: bool = False
