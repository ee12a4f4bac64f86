"""What the control server asks of a job."""

from __future__ import annotations

from typing import Any, Protocol


class Steerable(Protocol):
    """A running job, called from threads that are not its own. Every method raises a `PenstockError` where it cannot
    do what it is asked."""

    name: str

    def savepoint(self, directory: str | None = None, *, kind: str = "native") -> str:
        """Take a savepoint while the job goes on. Blocks; returns its path."""

    def checkpoint(self) -> int:
        """Complete a checkpoint now. Blocks; returns its number."""

    def stop_with_savepoint(
        self, directory: str | None = None, *, drain: bool = False, kind: str = "native", cancel: bool = False
    ) -> str:
        """Finish the epoch under way, take a savepoint, end. Blocks until there is a path; the job then ends, and with
        `cancel` it counts as cancelled."""

    def stop(self) -> None:
        """Ask for a clean end; returns at once."""

    def cancel(self) -> None:
        """Ask for an end without waiting for the epoch under way; returns at once."""

    def status(self) -> dict[str, Any]:
        """`{"state": "RUNNING", "queries": {uid: {"epoch": 12, "generation": 3, …}}, "restarts": 0}`; never blocks."""
