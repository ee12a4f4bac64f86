"""`Recovery`: a savepoint, or a retained checkpoint of any job, that a job starts from; and the options that say so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from penstock.config.option import boolean, option
from penstock.errors import ConfigurationError
from penstock.naming import check_name

Claim = Literal["claim", "no_claim"]


@dataclass(frozen=True)
class Recovery:
    """What `penstock run -s` and its companions, or their keys in a file, ask for. A job that has restored by this
    `restore_id` resumes from its own checkpoint; None for a path that a file sets."""

    path: str | None = None
    allow_non_restored: bool = False
    claim: Claim = "no_claim"
    # A job that has restored by this id resumes from its own checkpoint; None for a path that a file sets.
    restore_id: str | None = None
    fork_name: str | None = None
    fork_suffix: str | None = None


_UNIT = "tests/unit/config/test_recovery_options.py::"

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
_HANDED = f"{_UNIT}test_what_run_hands_over"

RECOVERY_OPTIONS = (
    _recovery("penstock run -s …", PATH, "path", "", _path,
        "A savepoint, or a retained checkpoint, that the job starts from instead of its own checkpoint.",
        _HANDED, aliases=("execution.savepoint.path",)),
    _recovery("Job(allow_non_restored_state=…)", ALLOW, "allow_non_restored", "false", boolean,
        "Whether state that no query of the program uses may be left behind.",
        _HANDED, aliases=("execution.savepoint.ignore-unclaimed-state",)),
    _recovery("penstock run --claim-mode …", CLAIM, "claim", "no_claim", _claim,
        "`no_claim`: the savepoint stays yours and is never needed again once the job runs. `claim`: it becomes the"
        " job's, which deletes it when it is no longer needed. Flink's `legacy` is refused.",
        f"{_UNIT}test_claim_modes", aliases=("execution.savepoint-restore-mode",)),
    _recovery("penstock run -s …", RESTORE_ID, "restore_id", "", _restore_id,
        "Set by `penstock run -s`, so that a restarted driver does not restore again. Do not set it yourself.",
        _HANDED),
    _recovery("penstock run --fork …", FORK_NAME, "fork_name", "", _job_name,
        "Replaces the job's name: a second job, from a savepoint or from its sources, runs beside the first.",
        f"{_UNIT}test_a_fork_is_whole"),
    _recovery("penstock run --suffix …", FORK_SUFFIX, "fork_suffix", "", _suffix,
        "The suffix for the names of all topics, tables and folders that a fork writes.",
        f"{_UNIT}test_a_fork_is_whole"),
)  # fmt: skip
