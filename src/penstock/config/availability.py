"""`Availability`: how soon a job goes on when its driver has died; and the options that say so."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.option import Option, boolean
from penstock.durations import duration_text
from penstock.errors import ConfigurationError

STANDBY = "high-availability.standby"
LEASE = "high-availability.lease"
SHORTEST_LEASE = 1.0  # seconds: it is renewed after a third, by a create and a listing
CLASS_ARCHIVE = "penstock.class-archive.enabled"


@dataclass(frozen=True)
class Availability:
    """`standby`: the supervisor keeps a second driver ready. `class_archive`: a driver's JVM may start from an archive
    of its classes in the user's cache, and have one made. `lease`: seconds for which one of several supervisors, on
    machines that share the checkpoint's storage, has the job to itself; None: there is only one."""

    standby: bool = False
    class_archive: bool = False
    lease: float | None = None

    @property
    def cost(self) -> str:
        """What it takes, for people; empty where it takes nothing."""
        parts = []
        if self.standby:
            parts.append(
                "With a standby: a second driver is kept ready, with a JVM of its own (up to spark.driver.memory, and"
                " what Java needs beside it) and a Python worker for each core. The job needs twice the memory of a"
                " driver."
            )
        if self.lease is not None:
            waiting = (
                "keeps a driver ready, which takes the memory of one driver there, and of two while it runs the job"
                if self.standby
                else "takes next to no memory where the checkpoint is in a folder; on any other storage only a driver"
                " can see the lease, so one is kept, with its memory"
            )
            parts.append(
                f"With a lease of {self.lease:g} s: a supervisor on another machine takes over when this one has not"
                f" renewed it for so long. While it waits it {waiting}."
            )
        return "\n".join(parts)


def lease_length(text: str, name: str) -> float:
    """A duration that leaves time to renew it."""
    seconds = duration_text(text, name)
    if seconds < SHORTEST_LEASE:
        raise ConfigurationError(
            f"{name}={text} is too short: a holder that pauses for a moment would lose the job.",
            safe="nothing was started.",
            to_do=f"give at least {SHORTEST_LEASE:g}s; 10s is a good beginning.",
        )
    return seconds


AVAILABILITY_OPTIONS = (
    Option(
        STANDBY, "availability", "standby", "penstock run --standby", "false", boolean,
        "Whether `penstock run` keeps a second driver ready, which takes over when the first one dies. It needs the"
        " memory of another JVM and its Python workers: see [Failover](../how-to/failover.md).",
        ("tests/unit/ops/process/test_standby_keeper.py::test_a_standby_takes_over",),
    ),
    Option(
        LEASE, "availability", "lease", f"-D {LEASE}=…", "", lease_length,
        "How long a supervisor has the job to itself before one on another machine, with the same program and the same"
        " checkpoint storage, takes over from it. None: there is no other. See"
        " [Failover](../how-to/failover.md#on-two-machines).",
        ("tests/unit/ops/process/test_lease.py::test_who_waits_takes_over_when_the_lease_has_run_out",),
    ),
    Option(
        CLASS_ARCHIVE, "availability", "class_archive", f"-D {CLASS_ARCHIVE}=…", "false", boolean,
        "Whether the driver's JVM starts from an archive of its classes in the"
        " [cache](../how-to/failover.md#the-archive-of-classes), and has one made where there is none: by a process"
        " that takes most of a core for a minute, after the driver has run for 20 seconds.",
        ("tests/unit/supply/test_class_archive.py::test_an_archive_is_used_once_it_is_there",),
    ),
)  # fmt: skip
