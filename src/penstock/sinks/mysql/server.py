"""What the server at the other end can do."""

from __future__ import annotations

import re

from penstock.sinks.mysql.faults import ServerError
from penstock.sinks.mysql.session import Session

_RECOVER_DENIED = {1227, 1401}


def version(session: Session) -> tuple[str, tuple[int, ...]]:
    """Product and version."""
    text = str(session.query("SELECT VERSION()")[0][0])
    product = "MariaDB" if "mariadb" in text.lower() else "MySQL"
    text = text.removeprefix("5.5.5-")  # what MariaDB says to clients that would not understand its own number
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return product, tuple(int(number) for number in numbers.groups()) if numbers else (0,)


def variable(session: Session, name: str) -> str | None:
    """A global setting; None where the server has none of that name."""
    found = session.query("SHOW GLOBAL VARIABLES WHERE variable_name = %s", [name])
    return str(found[0][1]) if found else None


def status(session: Session, name: str) -> int:
    found = session.query("SHOW GLOBAL STATUS WHERE variable_name = %s", [name])
    return int(found[0][1]) if found else 0


def two_phase_refusal(session: Session) -> str | None:
    """Why this server cannot keep prepared transactions for us; None if it can."""
    product, number = version(session)
    least = (10, 5) if product == "MariaDB" else (5, 7, 7)
    if number < least:
        return (
            f"{product} {'.'.join(map(str, number))} forgets a prepared transaction when its connection closes; "
            f"{'.'.join(map(str, least))} and later keep it"
        )
    if (variable(session, "wsrep_on") or "OFF").upper() in ("ON", "1"):
        return "a Galera cluster does not replicate XA transactions"
    try:
        session.query("XA RECOVER")
    except ServerError as error:
        if error.code not in _RECOVER_DENIED:
            raise
        return "the user may not list prepared transactions; GRANT XA_RECOVER_ADMIN ON *.* allows it"
    return None
