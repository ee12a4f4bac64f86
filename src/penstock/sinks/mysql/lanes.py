"""XA commits side by side: each waits for the server's disk, and the server writes them in groups."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checkpoint.decision import Committable, Outcome
from penstock.errors import PenstockError
from penstock.sinks.mysql import xa
from penstock.sinks.mysql.faults import ServerError
from penstock.sinks.mysql.markers import Markers
from penstock.sinks.mysql.session import Login, Session

if TYPE_CHECKING:
    from penstock.deadline import Deadline

log = logging.getLogger(__name__)

_LANES = 4
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_ANSWER_SECONDS = 60.0


def commit(
    login: Login, session: Session | None, markers: Markers, committables: Sequence[Committable], deadline: Deadline
) -> tuple[dict[int, Outcome], Session | None]:
    """What is proven of each writer; and the session, or the one that took its place, for the next time."""
    outcomes = {one.writer: Outcome.UNKNOWN for one in committables}
    if not committables:
        return outcomes, session
    waiting = deque(committables)
    beside = [
        threading.Thread(target=_lane, args=(login, markers, waiting, outcomes, deadline), daemon=True)
        for _ in range(min(_LANES, len(committables)) - 1)
    ]
    for lane in beside:
        lane.start()
    session = _drain(login, session, markers, waiting, outcomes, deadline)
    for lane in beside:
        lane.join()
    return outcomes, session


def _lane(
    login: Login, markers: Markers, waiting: deque[Committable], outcomes: dict[int, Outcome], deadline: Deadline
) -> None:
    session = _drain(login, None, markers, waiting, outcomes, deadline)
    if session is not None:
        session.close()


def _drain(
    login: Login,
    session: Session | None,
    markers: Markers,
    waiting: deque[Committable],
    outcomes: dict[int, Outcome],
    deadline: Deadline,
) -> Session | None:
    """Commit what is waiting until nothing is, or time is up."""
    wait = _FIRST_WAIT
    while not deadline.passed():
        try:
            one = waiting.popleft()
        except IndexError:
            break
        name = str(one.payload["writer"])
        try:
            if session is None or not session.open:
                session = Session(login, seconds=max(1.0, min(_ANSWER_SECONDS, deadline.remaining())))
            outcomes[one.writer] = xa.commit(session, markers, name, one.payload["xid"], one.payload["at"], deadline)
        except (ServerError, PenstockError) as error:
            waiting.append(one)  # whether it went through is asked on another connection
            if wait == _FIRST_WAIT:
                log.warning("the commit of %s is not answered, asking again: %s", name, error)
            if session is not None:
                session.close()
            time.sleep(min(wait, deadline.remaining()))
            wait = min(2 * wait, _LONGEST_WAIT)
    return session
