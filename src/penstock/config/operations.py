"""How a job is reached (`Rest`), logs (`Log`) and is taken over (`Availability`), what savepoint or retained checkpoint
it starts from (`Recovery`); and their options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from penstock.config.option import boolean, one_of, option, plain, whole
from penstock.deadline import duration_text
from penstock.errors import ConfigurationError
from penstock.naming import check_name

STANDBY = "high-availability.standby"
LEASE = "high-availability.lease"
SHORTEST_LEASE = 1.0  # seconds: it is renewed after a third, by a create and a listing


@dataclass(frozen=True)
class Availability:
    """`standby`: the supervisor keeps a second driver ready. `lease`: seconds for which one of several supervisors, on
    machines that share the checkpoint's storage, owns the job; None: there is only one."""

    standby: bool = False
    lease: float | None = None  # seconds; None: there is only one supervisor

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
    seconds = duration_text(text, name)
    if seconds < SHORTEST_LEASE:
        raise ConfigurationError(
            f"{name}={text} is too short: a holder that pauses for a moment would lose the job.",
            to_do=f"give at least {SHORTEST_LEASE:g}s; 10s is a good beginning.",
        )
    return seconds


AVAILABILITY_OPTIONS = (
    option("availability", "penstock run --standby", STANDBY, "standby", "false", boolean,
        "Whether `penstock run` keeps a second driver ready, which takes over when the first one dies. It needs the"
        " memory of another JVM and its Python workers: see [Failover](../how-to/failover.md)."),
    option("availability", "-D {key}=…", LEASE, "lease", "", lease_length,
        "How long a supervisor owns the job before a supervisor on another machine, with the same program and the same"
        " checkpoint storage, takes over from it. None: there is no other. See"
        " [Failover](../how-to/failover.md#on-two-machines)."),
)  # fmt: skip


@dataclass(frozen=True)
class Rest:
    """`port` 0 is a free one. `address` is the one that others use, where it is not `bind_address`; `hosts` are more
    names that requests may be meant for. `open_reads`: on this machine, reading needs no token. `certificate` and `key`
    are PEM files: with them it is asked by HTTPS, and not otherwise."""

    bind_address: str = "127.0.0.1"
    address: str | None = None
    port: int = 0
    enabled: bool = True
    hosts: tuple[str, ...] | None = None
    open_reads: bool = False
    certificate: str | None = None
    key: str | None = None


def _port(text: str, name: str) -> int:
    port = whole(text, name)
    if 0 <= port <= 65535:
        return port
    raise ConfigurationError(f"{name}={text} is not a port.", to_do="give 1 to 65535, or 0 for a free one.")


def _names(text: str, name: str) -> tuple[str, ...]:
    return tuple(host.strip() for host in text.replace(";", ",").split(",") if host.strip())


_rest = partial(option, "rest", "-D {key}=…")

REST_OPTIONS = (
    _rest("rest.bind-address", "bind_address", "127.0.0.1", plain,
        "The address on which a running job listens for [commands](rest.md)."),
    _rest("rest.address", "address", "", plain,
        "The address that clients use, as written into the registry. Default: the bind address."),
    _rest("rest.port", "port", "0", _port,
        "The port. With 0, or if the port is taken (with a warning), a free one is used. Flink's default is 8081."),
    _rest("penstock.control.enabled", "enabled", "true", boolean,
        "Whether a running job listens for commands. Otherwise it reacts to signals only."),
    _rest("penstock.control.hosts", "hosts", "", _names,
        "Comma-separated host names, such as a proxy's, that requests may use besides the addresses above, this"
        " machine's name and `localhost`. Other requests are refused."),
    _rest("penstock.control.open-reads", "open_reads", "false", boolean,
        "Whether any user of this machine may read the job's progress without the token. Errors always need it, and so"
        " does every request to a job that listens beyond this machine."),
    _rest("security.ssl.rest.certificate", "certificate", "", plain,
        "A PEM file with the certificate of a running job and of `penstock ui`; both then serve HTTPS only."),
    _rest("security.ssl.rest.key", "key", "", plain,
        "A PEM file with the key, without a password. Default: the key is in the certificate's file."),
)  # fmt: skip


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Log:
    format: LogFormat = LogFormat.TEXT


FORMAT = "penstock.log.format"

LOG_OPTIONS = (
    option("log", "-D {key}=…", FORMAT, "format", "text", partial(one_of, LogFormat),
        "`json` logs one JSON object a line, with job, query, epoch and sink: see [Logs](logs.md). `text` leaves"
        " logging as the program has set it up."),
)  # fmt: skip

Claim = Literal["claim", "no_claim"]


@dataclass(frozen=True)
class Recovery:
    """What `penstock run -s` and its companions, or their keys in a file, ask for. A job that has restored by this
    `restore_id` resumes from its own checkpoint; None for a path that a file sets."""

    path: str | None = None
    allow_non_restored: bool = False
    claim: Claim = "no_claim"
    restore_id: str | None = None
    fork_name: str | None = None
    fork_suffix: str | None = None


PATH, ALLOW = "execution.state-recovery.path", "execution.state-recovery.ignore-unclaimed-state"
CLAIM = "execution.state-recovery.claim-mode"
RESTORE_ID, FORK_NAME, FORK_SUFFIX = "penstock.restore.id", "penstock.fork.name", "penstock.fork.suffix"


def _path(text: str, name: str) -> str:
    if text.strip():
        return text.strip()
    raise ConfigurationError(f"{name} is empty.", to_do="name a savepoint's folder.")


def _claim(text: str, name: str) -> Claim:
    match text.strip().lower().replace("-", "_"):
        case "claim":
            return "claim"
        case "no_claim":
            return "no_claim"
        case "legacy":
            to_do = "choose no_claim: like legacy, it leaves the savepoint as it is; it also never depends on it."
        case _:
            to_do = "choose claim or no_claim."
    raise ConfigurationError(f"{name}={text!r} is neither claim nor no_claim.", to_do=to_do)


def _restore_id(text: str, name: str) -> str:
    if re.fullmatch(r"[0-9a-f]{32}", text.strip()):
        return text.strip()
    raise ConfigurationError(
        f"{name}={text!r} is not 32 hexadecimal digits.", to_do="leave it out; `penstock run -s` makes one."
    )


def _job_name(text: str, name: str) -> str:
    return check_name(text.strip(), f"name of a fork ({name})")


def _suffix(text: str, name: str) -> str:
    """A suffix joins names of topics, tables and folders, so it may begin with a dash."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,50}", text.strip()):
        return text.strip()
    raise ConfigurationError(
        f"{name}={text!r} cannot end the name of a topic or a table.",
        to_do="use up to 50 letters, digits, dots, dashes and underscores, for example '-next'.",
    )


_recovery = partial(option, "recovery")

RECOVERY_OPTIONS = (
    _recovery("penstock run -s …", PATH, "path", "", _path,
        "A savepoint, or a retained checkpoint, that the job starts from instead of its own checkpoint.",
        aliases=("execution.savepoint.path",)),
    _recovery("Job(allow_non_restored_state=…)", ALLOW, "allow_non_restored", "false", boolean,
        "Whether state that no query of the program uses may be left behind.",
        aliases=("execution.savepoint.ignore-unclaimed-state",)),
    _recovery("penstock run --claim-mode …", CLAIM, "claim", "no_claim", _claim,
        "`no_claim`: the savepoint stays yours and is never needed again once the job runs. `claim`: it becomes the"
        " job's, which deletes it when it is no longer needed. Flink's `legacy` is refused.",
        aliases=("execution.savepoint-restore-mode",)),
    _recovery("penstock run -s …", RESTORE_ID, "restore_id", "", _restore_id,
        "Set by `penstock run -s`, so that a restarted driver does not restore again. Do not set it yourself."),
    _recovery("penstock run --fork …", FORK_NAME, "fork_name", "", _job_name,
        "Replaces the job's name: a second job, from a savepoint or from its sources, runs beside the first."),
    _recovery("penstock run --suffix …", FORK_SUFFIX, "fork_suffix", "", _suffix,
        "The suffix for the names of all topics, tables and folders that a fork writes."),
)  # fmt: skip
