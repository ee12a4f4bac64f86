"""What a master's name says of where tasks run."""

from __future__ import annotations


def runs_tasks_itself(master: str | None) -> bool:
    """Whether tasks run in the driver's JVM, and so find what is on its class path, and its machine's files."""
    return master == "local" or (master or "").startswith("local[")
