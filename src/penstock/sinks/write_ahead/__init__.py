"""Any target, given as a function that writes rows: logged until they are decided, then handed over."""

from __future__ import annotations

from penstock.sinks.write_ahead.sink import WriteAheadSink

__all__ = ["WriteAheadSink"]
