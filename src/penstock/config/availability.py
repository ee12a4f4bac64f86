"""`Availability`: how soon a job goes on when its driver has died; and the options that say so."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.option import Option, boolean

STANDBY = "high-availability.standby"
CLASS_ARCHIVE = "penstock.class-archive.enabled"


@dataclass(frozen=True)
class Availability:
    """`standby`: the supervisor keeps a second driver ready. `class_archive`: a driver's JVM may start from an archive
    of its classes in the user's cache, and have one made."""

    standby: bool = False
    class_archive: bool = True

    @property
    def cost(self) -> str:
        """What it takes, for people; empty where it takes nothing."""
        if not self.standby:
            return ""
        return (
            "With a standby: a second driver is kept ready, with a JVM of its own (up to spark.driver.memory, and what"
            " Java needs beside it) and a Python worker for each core. The job needs twice the memory of a driver."
        )


AVAILABILITY_OPTIONS = (
    Option(
        STANDBY, "availability", "standby", "penstock run --standby", "false", boolean,
        "Whether `penstock run` keeps a second driver ready, which takes over when the first one dies. It needs the"
        " memory of another JVM and its Python workers: see [Failover](../how-to/failover.md).",
        ("tests/unit/process/test_standby_keeper.py::test_a_standby_takes_over",),
    ),
    Option(
        CLASS_ARCHIVE, "availability", "class_archive", f"-D {CLASS_ARCHIVE}=…", "true", boolean,
        "Whether the driver's JVM starts from an archive of its classes. The first driver that runs for a while has it"
        " made, by a short process of its own, in the [cache](../how-to/failover.md#the-archive-of-classes).",
        ("tests/unit/spark/test_class_archive.py::test_an_archive_is_used_once_it_is_there",),
    ),
)  # fmt: skip
