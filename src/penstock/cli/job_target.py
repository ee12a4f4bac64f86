"""Which job a command means: by name, by id or the beginning of one, on this machine or at an address."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ControlError, JobNotFound
from penstock.ops.process.registry import Entry, Registry

if TYPE_CHECKING:
    from penstock.ops.server.client import Client

_POLL_SECONDS = 0.1
_SHORTEST_PREFIX = 4


@dataclass(frozen=True)
class JobTarget:
    """A job that runs, and how to reach it. `local`: it stands in this machine's registry."""

    id: str
    name: str
    client: Client
    local: bool

    def wait_until_ended(self) -> Entry | None:
        """Once the job and its supervisor are gone; None where that cannot be seen from here."""
        while self.local:
            entry = Registry().get(self.id)
            if entry is None or (entry.state.ended and not entry.supervised):
                return entry
            time.sleep(_POLL_SECONDS)
        return None


def find_running(job: str, manager: str | None) -> JobTarget:
    """The running job that is meant. Raises `JobNotFound` where there is none, or more than one."""
    from penstock.ops.server.client import Client

    if manager is not None:
        client = client_at(manager)
        found = [candidate for candidate in client.jobs() if _matches(job, candidate["name"], candidate["jid"])]
        candidate = _choose(
            job,
            [_Candidate(candidate["jid"], candidate["name"], candidate["state"]) for candidate in found],
            f"at {manager}",
        )
        return JobTarget(candidate.id, candidate.name, client, local=False)
    entries = [entry for entry in Registry().entries() if _matches(job, entry.name, entry.id)]
    alive = [entry for entry in entries if not entry.state.ended]
    if not alive and entries:
        last = entries[0]
        raise JobNotFound(
            f"Job {last.name!r} ({last.id}) does not run: it is {last.state}.",
            safe="nothing was asked of it.",
            to_do="`penstock list -a` shows jobs that have ended.",
        )
    chosen = _choose(job, [_Candidate(entry.id, entry.name, entry.state) for entry in alive], "on this machine")
    entry = next(entry for entry in alive if entry.id == chosen.id)
    if entry.address is None:
        raise ControlError(
            f"Job {entry.name!r} ({entry.id}) is {entry.state} and takes no commands"
            + (" yet." if entry.supervised else "."),
            safe="nothing was asked of it.",
            to_do="try again once it runs, or send SIGTERM to its process"
            f" {entry.supervisor if entry.supervised else entry.pid}, which ends it cleanly.",
        )
    return JobTarget(entry.id, entry.name, Client(entry.address, entry.token, entry.certificate), local=True)


def client_at(manager: str) -> Client:
    """A client for the job at this address. Its token is `PENSTOCK_TOKEN`, or, for a job of one's own on this machine,
    the one in the registry: it is sent nowhere but to the address that stands beside it there."""
    from penstock.ops.server.client import Client

    client = Client(manager, None)
    own = (entry.token for entry in Registry().entries() if client.is_at(entry.address) and not entry.state.ended)
    return Client(manager, os.environ.get("PENSTOCK_TOKEN") or next(own, None))


def find_entry(job: str) -> Entry:
    """The run that is meant, whether it runs or not: of one name the one that runs, or else the newest."""
    entries = [entry for entry in Registry().entries() if _matches(job, entry.name, entry.id)]
    alive = [entry for entry in entries if not entry.state.ended]
    chosen = _choose(
        job, [_Candidate(entry.id, entry.name, entry.state) for entry in alive or entries[:1]], "known here"
    )
    return next(entry for entry in entries if entry.id == chosen.id)


def running_names() -> Iterator[str]:
    """For the shell's completion."""
    for entry in Registry().entries():
        if not entry.state.ended:
            yield entry.name


@dataclass(frozen=True)
class _Candidate:
    id: str
    name: str
    state: Any


def _matches(wanted: str, name: str, id: str) -> bool:
    return wanted == name or (len(wanted) >= _SHORTEST_PREFIX and id.startswith(wanted.lower()))


def _choose(wanted: str, found: Sequence[_Candidate], where: str) -> _Candidate:
    by_name = [candidate for candidate in found if candidate.name == wanted]
    candidates = by_name or found
    if not candidates:
        raise JobNotFound(
            f"No job {wanted!r} {'is known here' if where == 'known here' else f'runs {where}'}.",
            safe="nothing was asked of any job.",
            to_do="see `penstock list`; a job is named by its name, its id, or at least 4 digits of it.",
        )
    if len(candidates) > 1:
        listed = ", ".join(f"{candidate.name} {candidate.id} ({candidate.state})" for candidate in candidates)
        raise JobNotFound(
            f"{wanted!r} may be any of {len(candidates)} jobs: {listed}.",
            safe="nothing was asked of any of them.",
            to_do="give the id of the one you mean, or as much of it as is unique.",
        )
    return candidates[0]
