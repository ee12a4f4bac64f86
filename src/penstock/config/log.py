"""`Log`: how a job's log lines are written; and the option that says so. Spark's own level is Spark's setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.config.option import Option, one_of


class LogFormat(StrEnum):
    """`TEXT` leaves logging as the program has set it up."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Log:
    format: LogFormat = LogFormat.TEXT


def _format(text: str, name: str) -> LogFormat:
    return one_of(LogFormat, text, name)


FORMAT = "penstock.log.format"

LOG_OPTIONS = (
    Option(
        FORMAT, "log", "format", f"-D {FORMAT}=…", "text", _format,
        "`json` logs one JSON object a line, with job, query, epoch and sink: see [Logs](logs.md). `text` leaves"
        " logging as the program has set it up.",
        ("tests/unit/./test_logs.py::test_the_setting_is_read_from_every_place",),
    ),
)  # fmt: skip
