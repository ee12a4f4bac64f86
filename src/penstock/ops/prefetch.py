"""What a start imports later, imported while Java starts: the program waits for Java then, and Python has time."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterable

#: What a start loads in this process besides what a program has loaded when it comes to `run`.
LATER = ("penstock.savepoints.restore", "penstock.ops.server.app", "uvicorn")
#: And what it loads for those that a program has imported.
_KAFKA = ("penstock.kafka.connections", "confluent_kafka.admin", "kafka", "kafka.admin", "kafka.protocol.admin")
FOR = {
    "penstock.sinks.kafka.sink": (*_KAFKA, "penstock.sinks.kafka.committer"),
    "penstock.sources.kafka": ("confluent_kafka.admin",),
}


def begin() -> None:
    """Import in a thread what this program will need. Returns at once; what cannot be imported is somebody else's to
    say."""
    clients = [name for module, names in FOR.items() if module in sys.modules for name in names]
    arguments = (dict.fromkeys((*clients, *LATER)),)
    threading.Thread(target=fetch, args=arguments, name="penstock-prefetch", daemon=True).start()


def fetch(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # also a warning that was made an error
            importlib.import_module(name)
