"""How a running job is reached (`Rest`), logs (`Log`) and is taken over (`Availability`); and their options."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from penstock.config.option import boolean, one_of, option, plain, whole
from penstock.deadline import duration_text
from penstock.errors import ConfigurationError

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
        " memory of another JVM and its Python workers: see [Failover](../how-to/failover.md).",
        "tests/unit/ops/process/test_standby_keeper.py::test_a_standby_takes_over"),
    option("availability", "-D {key}=…", LEASE, "lease", "", lease_length,
        "How long a supervisor owns the job before a supervisor on another machine, with the same program and the same"
        " checkpoint storage, takes over from it. None: there is no other. See"
        " [Failover](../how-to/failover.md#on-two-machines).",
        "tests/unit/ops/process/test_lease.py::test_who_waits_takes_over_when_the_lease_has_run_out"),
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


_SERVER = "tests/unit/ops/server/test_server.py::"
_ACCESS = "tests/unit/ops/server/test_access.py::"


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
        "The address on which a running job listens for [commands](rest.md).",
        f"{_SERVER}test_beyond_this_machine_every_request_needs_the_token"),
    _rest("rest.address", "address", "", plain,
        "The address that clients use, as written into the registry. Default: the bind address.",
        f"{_SERVER}test_the_address_others_are_told"),
    _rest("rest.port", "port", "0", _port,
        "The port. With 0, or if the port is taken (with a warning), a free one is used. Flink's default is 8081.",
        f"{_SERVER}test_a_port_that_is_taken_stops_no_job"),
    _rest("penstock.control.enabled", "enabled", "true", boolean,
        "Whether a running job listens for commands. Otherwise it reacts to signals only.",
        f"{_SERVER}test_a_job_may_be_out_of_reach"),
    _rest("penstock.control.hosts", "hosts", "", _names,
        "Comma-separated host names, such as a proxy's, that requests may use besides the addresses above, this"
        " machine's name and `localhost`. Other requests are refused.",
        f"{_SERVER}test_it_answers_only_to_its_own_names"),
    _rest("penstock.control.open-reads", "open_reads", "false", boolean,
        "Whether any user of this machine may read the job's progress without the token. Errors always need it, and so"
        " does every request to a job that listens beyond this machine.",
        f"{_SERVER}test_reading_may_be_open_but_never_shows_an_error"),
    _rest("security.ssl.rest.certificate", "certificate", "", plain,
        "A PEM file with the certificate of a running job and of `penstock ui`; both then serve HTTPS only.",
        f"{_ACCESS}test_by_tls_where_there_is_a_certificate"),
    _rest("security.ssl.rest.key", "key", "", plain,
        "A PEM file with the key, without a password. Default: the key is in the certificate's file.",
        f"{_ACCESS}test_by_tls_where_there_is_a_certificate"),
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
        " logging as the program has set it up.",
        "tests/unit/test_logs.py::test_the_setting_is_read_from_every_place"),
)  # fmt: skip
