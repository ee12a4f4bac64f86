"""The tests' servers and clock. A benchmark is started as a script, so the repository's root is not on its path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.own_time import OwnTime
from tests.support.servers.broker import Broker
from tests.support.servers.server import Server

__all__ = ["Broker", "OwnTime", "Server"]
