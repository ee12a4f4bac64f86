"""`Rest`: where a running job can be reached; and the options that say so."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.option import Option, Parser, boolean, plain, whole
from penstock.errors import ConfigurationError


@dataclass(frozen=True)
class Rest:
    """`port` 0 is a free one. `address` is what others are told, where it is not `bind_address`; `hosts` are more names
    that requests may be meant for. `open_reads`: on this machine, reading needs no token. `certificate` and `key` are
    PEM files: with them it is asked by HTTPS, and not otherwise."""

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
    raise ConfigurationError(
        f"{name}={text} is not a port.", safe="nothing was started.", to_do="give 1 to 65535, or 0 for a free one."
    )


def _names(text: str, name: str) -> tuple[str, ...]:
    return tuple(host.strip() for host in text.replace(";", ",").split(",") if host.strip())


def _rest(key: str, name: str, default: str, parse: Parser, meaning: str, test: str) -> Option:
    shown_by = test if "::" in test else f"{_SERVER}{test}"
    return Option(key, "rest", name, f"-D {key}=…", default, parse, meaning, (shown_by,))


REST_OPTIONS = (
    _rest(
        "rest.bind-address", "bind_address", "127.0.0.1", plain,
        "The address on which a running job listens for [commands](rest.md).",
        "test_beyond_this_machine_every_request_needs_the_token",
    ),
    _rest(
        "rest.address", "address", "", plain,
        "The name under which others reach it; written into the registry. Without it, the one above.",
        "test_the_address_others_are_told",
    ),
    _rest(
        "rest.port", "port", "0", _port,
        "Its port. 0 takes a free one; so does a port that is taken, with a warning. Flink has 8081.",
        "test_a_port_that_is_taken_stops_no_job",
    ),
    _rest(
        "penstock.control.enabled", "enabled", "true", boolean,
        "Whether a running job listens at all. Without, only signals reach it.",
        "test_a_job_may_be_out_of_reach",
    ),
    _rest(
        "penstock.control.hosts", "hosts", "", _names,
        "More names under which it is asked, with commas between them, such as a proxy's. A request for any other name"
        " than these, the addresses above, this machine's name and `localhost` is refused.",
        "test_it_answers_only_to_its_own_names",
    ),
    _rest(
        "penstock.control.open-reads", "open_reads", "false", boolean,
        "Whether any user of this machine may read where the job stands without the token. Errors are never told"
        " without it, and a job that listens beyond this machine asks for it all the same.",
        "test_reading_may_be_open_but_never_shows_an_error",
    ),
    _rest(
        "security.ssl.rest.certificate", "certificate", "", plain,
        "A PEM file with the certificate that a running job and `penstock ui` show; they then answer by HTTPS only.",
        f"{_ACCESS}test_by_tls_where_there_is_a_certificate",
    ),
    _rest(
        "security.ssl.rest.key", "key", "", plain,
        "A PEM file with its key, without a password. Without it, the certificate's file holds the key too.",
        f"{_ACCESS}test_by_tls_where_there_is_a_certificate",
    ),
)  # fmt: skip
