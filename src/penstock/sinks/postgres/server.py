"""Which server, as whom: what the user said, how to say it to libpq, and how to speak of it without its secrets."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote

from penstock.errors import ConfigurationError
from penstock.secrets import hide, is_secret
from penstock.sinks.sql import faults

#: A server that is gone without a word is noticed after about a minute, in a task as in the driver.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
    "tcp_user_timeout": "60000",
}
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']+)")
# A password that should have been encoded is taken up to the last @: rather too much is hidden than too little.
_URL = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?]*)(?::(?P<password>[^?]*))?@)?(?P<hosts>[^/?]*)"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)


@functools.cache
def client() -> SimpleNamespace:
    """psycopg for questions and decisions, ADBC for rows; `MissingExtra` where one is not installed."""
    try:
        import adbc_driver_manager.dbapi as dbapi
        import adbc_driver_postgresql.dbapi as adbc
        import psycopg
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise faults.missing_extra("PostgreSQL", "postgres", error) from error
    return SimpleNamespace(adbc=adbc, dbapi=dbapi, psycopg=psycopg, make_conninfo=make_conninfo)


@dataclass(frozen=True, repr=False)
class Server:
    """Connection parameters. `str()` and `repr()` show host, port, database and user, and nothing else."""

    conninfo: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        known = self._known()
        host = known.get("host") or known.get("hostaddr") or "localhost"
        ports = known.get("port", "")
        database = known.get("dbname", "")
        return f"{host}{f':{ports}' if ports else ''}{f'/{database}' if database else ''}"

    def __repr__(self) -> str:
        user = self._known().get("user")
        return f"{user}@{self}" if user else str(self)

    def libpq(self) -> str:
        """A connection string for libpq, secrets included."""
        try:
            given = client().make_conninfo(self.conninfo)
            # What the user says wins over our patience.
            ours = {name: value for name, value in _PATIENCE.items() if f"{name}=" not in given}
            text: str = client().make_conninfo(given, **{**ours, **self.options})
        except client().psycopg.Error:
            # libpq repeats what it could not read, and that may be a password.
            raise ConfigurationError(
                f"PostgreSQL's client cannot read the connection parameters ({self}).",
                safe="nothing was started.",
                to_do="write postgresql://user@host:5432/database or libpq's keywords, with special characters of a "
                "password percent-encoded, or give the password as a keyword of its own.",
            ) from None
        return text

    def scrubbed(self, text: str) -> str:
        """`text` without any secret of ours that may stand in it."""
        return " ".join(hide(text, self._secrets()).split())

    def _secrets(self) -> set[str]:
        known = self._known()
        found = {str(value) for name, value in known.items() if value and is_secret(name)}
        if self._is_url:
            found.add(_URL.match(self.conninfo)["password"] or "")  # type: ignore[index]
        return found

    @property
    def _is_url(self) -> bool:
        return self.conninfo.startswith(("postgresql://", "postgres://"))

    def _known(self) -> dict[str, Any]:
        """The parameters as far as they can be read without libpq."""
        known: dict[str, Any] = {}
        if self._is_url:
            parts = _URL.match(self.conninfo)
            assert parts is not None  # it matches whatever begins like one
            hosts = [re.fullmatch(r"(.*?)(?::(\d*))?", host) for host in parts["hosts"].split(",")]
            known = {
                "user": unquote(parts["user"] or ""),
                "password": unquote(parts["password"] or ""),
                "host": ",".join(unquote(host[1]) for host in hosts if host),
                "port": ",".join(host[2] for host in hosts if host and host[2]),
                "dbname": unquote(parts["database"] or ""),
                **dict(parse_qsl(parts["query"] or "")),
            }
        else:
            for name, value in _PAIR.findall(self.conninfo):
                known[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith("'") else value
        return {**known, **self.options}
